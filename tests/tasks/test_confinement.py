"""What upstream has deprecated stays where it can be replaced, and reading workloads and opening models stays lean."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "torch.ao": "tasks/quantize/",
    "torch.quantization": "tasks/quantize/",
    "torch.jit": "tasks/runtimes/torchscript",
}


def used_names(source: str) -> Iterator[str]:
    """Dotted names that a module imports, or reaches from the name ``torch``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def uses(source: str, deprecated: str) -> bool:
    return any(f"{name}.".startswith(f"{deprecated}.") for name in used_names(source))


@pytest.mark.parametrize("deprecated", ALLOWED)
@pytest.mark.slow
def test_each_deprecated_api_is_used_in_one_package(deprecated: str) -> None:
    modules = [path for layer in ("flows", "tasks", "storage") for path in (ROOT / layer).rglob("*.py")]
    users = {str(path.relative_to(ROOT)) for path in modules if uses(path.read_text(encoding="utf-8"), deprecated)}
    assert not {user for user in users if not user.startswith(ALLOWED[deprecated])}


@pytest.mark.slow
def test_no_runtime_is_named_outside_its_own_module_and_its_line() -> None:
    named = [
        str(path.relative_to(ROOT))
        for layer in ("flows", "tasks", "storage")
        for path in (ROOT / layer).rglob("*.py")
        if '"torchscript"' in path.read_text(encoding="utf-8")
    ]
    assert named == ["tasks/workload/recipe.py"]


def loaded_by(code: str) -> set[str]:
    code = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    return set(done.stdout.split())


@pytest.mark.slow
def test_reading_workloads_imports_neither_torch_nor_prefect() -> None:
    code = (
        "from flows.request import BUILT_IN\nfrom tasks.workload import find_workloads\nimport tasks.run.stages\n"
        "assert len(find_workloads([], BUILT_IN)) == 4"
    )
    assert not {"torch", "prefect", "pyarrow", "duckdb"} & loaded_by(code)


@pytest.mark.slow
def test_opening_a_candidate_needs_neither_prefect_nor_the_results_store() -> None:
    code = "import tasks.measure.benchmark.launch, tasks.quantize.converted, tasks.runtimes.torchscript.make"
    code += ", tasks.runtimes.aot_inductor.open, tasks.data.archive"
    # The compiler imports sympy, and httpx imports rich.
    heavy = {"prefect", "pyarrow", "duckdb", "pandas", "matplotlib", "torchvision", "aiohttp", "sympy", "rich"}
    assert not heavy & loaded_by(code)

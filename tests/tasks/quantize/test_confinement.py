"""What upstream has deprecated stays in one package, and opening a model stays lean."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Copied into bundles as verify.py, which must run where this project is not installed.
STANDALONE = ROOT / "tasks" / "package" / "standalone.py"
DEPRECATED = ("torch.ao", "torch.jit", "torch.quantization")


def used_names(source: str) -> Iterator[str]:
    """Dotted names that a module imports, or reaches from the name ``torch``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def deprecated_names(source: str) -> list[str]:
    return [name for name in used_names(source) if any(f"{name}.".startswith(f"{part}.") for part in DEPRECATED)]


def test_only_one_package_uses_what_upstream_has_deprecated() -> None:
    allowed = ROOT / "tasks" / "quantize"
    modules = [path for layer in ("flows", "tasks", "storage") for path in (ROOT / layer).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): names
        for path in modules
        if allowed not in path.parents
        and path != STANDALONE
        and (names := deprecated_names(path.read_text(encoding="utf-8")))
    }
    assert not found


def test_the_search_sees_every_way_to_reach_them() -> None:
    for source in (
        "import torch.jit",
        "from torch import jit",
        "from torch.ao.quantization import convert",
        "import torch\ntorch.jit.load('x')",
        "import torch.quantization as q",
    ):
        assert deprecated_names(source), source
    assert not deprecated_names("import torch\ntorch.backends.quantized.engine = 'x86'\nfrom torchvision import models")


def test_opening_a_model_needs_neither_prefect_nor_the_results_store() -> None:
    code = "import sys, tasks.quantize; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    heavy = {"prefect", "pyarrow", "duckdb", "pandas", "matplotlib", "torchvision", "fsspec", "aiohttp"}
    assert not heavy & set(result.stdout.split())

"""What a digest of code covers: edits to a copy of the project, and which artifacts would be made anew."""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks import sources
from tasks.user_code import call_factory
from tasks.workload.base import FactorySpec

ROOT = Path(__file__).parents[2]
NETWORK = """
    import torch

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return {factor} * x

    def network():
        return torch.nn.Sequential(torch.nn.Linear(4, 2), {parts})
"""
# Runs a small night's stages on a copy of the project and notes whose code is digested for whom; then makes each edit
# in turn, digests the same again, and prints what changed.
RECORD = """
import json, sys
from pathlib import Path

from tasks import sources

asked, digest_now = {}, sources.code_digest
def recording(*roots):
    caller = sys._getframe(1)
    caller = caller.f_back if caller.f_globals["__name__"] == "tasks.sources" else caller
    asked[f"{caller.f_globals['__name__']} {[getattr(root, '__name__', root) for root in roots]}"] = roots
    return digest_now(*roots)
sources.code_digest = recording

from storage.artifacts import ArtifactStore
from tasks import stages
from tasks.job import Workspace
from tasks.workload import Workload

workspace = Workspace(ArtifactStore(Path(sys.argv[1])))
for workload in map(Workload.model_validate, json.loads(sys.argv[2])):
    job = stages.obtain(workspace, workload, stages.prepare(workspace, workload))
    for recipe in workload.recipe:
        for runtime in recipe.runtimes:
            stages.build(workspace, job, recipe, runtime)

def digests():
    sources._read.cache_clear()
    import linecache
    linecache.clearcache()
    return {name: digest_now(*roots) for name, roots in asked.items()}

before = digests()
changed = []
for file, old, new in json.loads(sys.argv[3]):
    path = Path(sys.argv[4]) / file
    text = path.read_text()
    assert text.count(old) >= 1, (file, old)
    path.write_text(text.replace(old, new, 1))
    after = digests()
    changed.append([name for name in before if before[name] != after[name]])
    path.write_text(text)
assert digests() == before
print(json.dumps(changed))
"""
COMMON = {"schema_version": 1, "description": "a small one", "benchmark": {"baseline": "float/eager", "batch_size": 2}}
BOTH = ["eager", "torchscript"]
WORKLOADS = [
    {
        **COMMON,
        "name": "pictures",
        "domain": "image-classification",
        "data": {
            "kind": "rendered-characters",
            "characters": "AH",
            "image_size": 16,
            "train": 8,
            "calibration": 4,
            "valid": 4,
            "test": 4,
        },
        "model": {"kind": "factory", "factory": "tests.tasks.quantize.networks:plain"},
        "checkpoint": {"kind": "train", "epochs": 1},
        "recipe": [
            {"name": "float", "method": "none", "runtimes": BOTH},
            {"name": "static", "method": "static", "runtimes": BOTH},
            {"name": "qat", "method": "qat", "epochs": 1},
        ],
    },
    {
        **COMMON,
        "name": "sequence",
        "domain": "sequence",
        "data": {"kind": "random-sequence"},
        "model": {"kind": "lstm"},
        "checkpoint": {"kind": "seeded"},
        "recipe": [
            {"name": "float", "method": "none", "runtimes": BOTH},
            {"name": "dynamic", "method": "dynamic", "runtimes": BOTH},
        ],
    },
]
WORKLOADS += [
    {
        **COMMON,
        "name": "words",
        "domain": "language-model",
        "data": {"kind": "pydoc-topics"},
        "model": {"kind": "word-lm", "embedding_size": 2, "hidden_size": 2, "layers": 1},
        "checkpoint": {"kind": "seeded"},
        "recipe": [{"name": "float", "method": "none"}],
    }
]
EDITS = {
    "an image data set's constant": ("tasks/data/rendered.py", "_OVERSAMPLING = ", "_OVERSAMPLING = 1 + "),
    "a corpus's constant": ("tasks/data/corpus.py", "_HELD_OUT_SHARE = ", "_HELD_OUT_SHARE = 2 * "),
    "the training's constant": (
        "tasks/domains/image_classification/domain.py",
        "_WEIGHT_DECAY = ",
        "_WEIGHT_DECAY = 2 * ",
    ),
    "what the training calls": ("tasks/domains/image_classification/domain.py", "side // 16", "side // 8"),
    "an evaluation's line": ("tasks/domains/image_classification/domain.py", 'unit="images"', 'unit="pictures"'),
    "a runtime's line": ("tasks/runtimes/torchscript_files.py", "torch.jit.trace(", "torch.jit.script("),
    "a converter's line": ("tasks/quantize/plain.py", "return ", "return None or "),
    "a method's line": ("tasks/quantize/methods.py", "tolerance=1e-4", "tolerance=100 * 1e-6"),
    "a docstring": ("tasks/data/rendered.py", '"""', '"""Edited. '),
    "a comment": ("tasks/quantize/converted.py", "import io\n", "import io  # edited\n"),
    "a registry's line": (
        "tasks/extensions.py",
        '"eager": "',
        '"other": "tasks.runtimes.runtimes:Eager", "eager": "',
    ),
}


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write the user's module, import it anew, and give the digest of what its factory builds."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def digest(factor: str = "2", parts: str = "Scaled()") -> str:
        (tmp_path / "own_network.py").write_text(textwrap.dedent(NETWORK.format(factor=factor, parts=parts)))
        sys.modules.pop("own_network", None)
        importlib.invalidate_caches()
        spec = FactorySpec(kind="factory", factory="own_network:network")
        return sources.model_digest(call_factory(spec), spec)

    yield digest
    sys.modules.pop("own_network", None)


@pytest.mark.slow
def test_an_equal_network_has_an_equal_digest(own_module: Callable[..., str]) -> None:
    assert own_module() == own_module()


@pytest.mark.slow
def test_a_factory_that_puts_other_parts_together_is_noticed(own_module: Callable[..., str]) -> None:
    assert own_module(parts="torch.nn.ReLU()") != own_module(parts="torch.nn.Tanh()")


def test_a_part_that_computes_something_else_is_noticed(own_module: Callable[..., str]) -> None:
    assert own_module(factor="2") != own_module(factor="3")


@pytest.mark.slow
def test_what_the_users_module_imports_of_its_folder_is_noticed_and_libraries_are_not(tmp_path: Path) -> None:
    (tmp_path / "own_trainer.py").write_text("import json, torch\nfrom own_steps import step\ndef train(): step()\n")
    digests = []
    for text in ("def step(): return 1\n", "def step(): return 2\n", "# edited\ndef step(): return 2\n"):
        (tmp_path / "own_steps.py").write_text(text)
        digests.append(sources.user_digest(str(tmp_path), "own_trainer:train"))
    assert digests[0] != digests[1] == digests[2]


def test_threads_parse_code_at_once_although_garbage_is_collected_meanwhile() -> None:
    # Two trainings side by side failed once: a collection called Python code, and the threads took turns.
    code, failed, threads = Path(sources.__file__).read_bytes(), list[BaseException](), list[threading.Thread]()

    def parse() -> None:
        try:
            sources._relevant_tree(code)
        except SystemError as error:
            failed.append(error)

    def switch(phase: str, info: dict[str, int]) -> None:
        if not threads and sys._getframe(1).f_code is ast.parse.__code__:
            threads.append(threading.Thread(target=parse))
            threads[0].start()
            threads[0].join(0.5)  # it waits for this thread, or parses within this thread's parsing

    before = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(100)
    try:
        parse()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(switch)
    threads[0].join()
    assert failed == []


@pytest.fixture(scope="module")
def made_anew(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Which makers' digests each of `EDITS` changes."""
    folder = tmp_path_factory.mktemp("edited")
    for layer in ("tasks", "storage", "tests"):
        shutil.copytree(ROOT / layer, folder / "copy" / layer, ignore=shutil.ignore_patterns("__pycache__"))
    arguments = [str(folder / "store"), json.dumps(WORKLOADS), json.dumps(list(EDITS.values())), str(folder / "copy")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", RECORD, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder / "copy")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(EDITS, map(set, json.loads(done.stdout)), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit", ["a docstring", "a comment", "a registry's line", "a method's line", "an evaluation's line"]
)
def test_what_decides_nothing_changes_no_digest(made_anew: dict[str, set[str]], edit: str) -> None:
    assert made_anew[edit] == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "makers"),
    [
        ("an image data set's constant", {"tasks.data.rendered"}),
        ("a corpus's constant", {"tasks.data.corpus"}),
        ("the training's constant", {"tasks.checkpoint"}),
        ("what the training calls", {"tasks.checkpoint", "tasks.quantize.fine_tune"}),
        ("a runtime's line", {"tasks.build"}),
        ("a converter's line", {"tasks.build", "tasks.quantize.converted"}),
    ],
)
def test_an_edit_of_code_makes_anew_what_that_code_makes(
    made_anew: dict[str, set[str]], edit: str, makers: set[str]
) -> None:
    assert {name.split()[0] for name in made_anew[edit]} == makers


@pytest.mark.slow
def test_a_runtimes_edit_leaves_other_runtimes_alone(made_anew: dict[str, set[str]]) -> None:
    assert all("torchscript" in name for name in made_anew["a runtime's line"])
    assert all("plain" in name for name in made_anew["a converter's line"])


def test_comments_and_docstrings_do_not_change_a_files_digest(tmp_path: Path) -> None:
    file, digests = tmp_path / "code.py", []
    for text in ("def two():\n    return 2\n", '"""A number."""\n\n\ndef two():  # even\n    return 2\n', "two = 2\n"):
        file.write_text(text)
        digests.append(sources.source_digest(file))
    assert digests[0] == digests[1] != digests[2]

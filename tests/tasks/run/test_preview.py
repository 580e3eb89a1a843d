"""Trying workloads out: what is wrong is found before a night, each problem once, and nothing is trained."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactStore
from tasks.environment.libraries import LibraryError
from tasks.run.stages import build
from tasks.values.job import Workspace
from tasks.values.results import Preview
from tests.flows.trials import Here, tried_out
from tests.tasks.domains.custom.own import own

CODE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, gives="logits"):
            super().__init__()
            if gives == "error":
                raise KeyError("no such width")
            self.first, self.last, self.gives = nn.Linear(4, 8), nn.Linear(8, 3), gives

        def forward(self, values):
            print("a line of the user's")
            found = self.last(torch.relu(self.first(values)))
            if self.gives == "forward":
                raise ValueError("not today")
            if self.gives == "text":
                return {"logits": found, "note": "a text"}
            if self.gives == "nan":
                return found * float("nan")
            return found if self.gives == "logits" else found.T[:2]

    def read():
        rows = [(torch.randn(4), index % 3) for index in range(12)]
        return {"calibration": rows, "test": rows, "train": rows}

    def train(model, splits, seed, epochs):
        raise AssertionError("a preview trained")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "preview_net.py").write_text(textwrap.dedent(CODE))
    return tmp_path


def previewed(folder: Path, **changed: Any) -> Preview:
    sections: dict[str, Any] = {
        "data": {"kind": "factory", "factory": "preview_net:read"},
        "model": {"kind": "factory", "factory": "preview_net:Net"},
        "checkpoint": {"kind": "train", "train": "preview_net:train"},
        "recipe": [
            {"name": "float", "method": "none", "runtimes": ["eager", "torchscript"]},
            {"name": "static-int8", "method": "static", "exclude": ["last"], "runtimes": ["eager", "torchscript"]},
        ],
    }
    return tried_out(own(folder, **sections | changed), Here(folder / "store"))


@pytest.mark.slow
def test_the_preview_describes_inputs_outputs_possible_recipes_and_float_modules(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = previewed(folder)
    assert not found.problems
    assert (found.model, found.parameters, found.checkpoint) == ("Net", 67, "trains on first use")
    assert (found.inputs, found.outputs) == ("values float32 [1, 4]", "output-0 float32 [1, 3]")
    assert found.splits == {"calibration": 12, "test": 12}
    assert found.methods["static"] == ""
    assert found.methods["qat"] == ""
    last = {str(each.candidate): each for each in found.candidates}["static-int8/torchscript"].coverage
    assert {(leaf.module, leaf.quantized, leaf.reason) for leaf in last} == {
        ("first", True, ""),
        ("last", False, "excluded by the recipe"),
    }
    # Standard output is for the command's own words.
    assert "a line of the user's" not in capsys.readouterr().out
    untrained = previewed(folder, checkpoint={"kind": "seeded"}, recipe=[{"name": "float", "method": "none"}])
    assert untrained.methods["qat"] == "[fine_tune] train is not set"


def test_a_missing_layer_is_reported_once_for_the_candidates_of_its_recipe(folder: Path) -> None:
    recipes = [
        {"name": "float", "method": "none"},
        {"name": "int8", "method": "dynamic", "exclude": ["lost"], "runtimes": ["eager", "torchscript"]},
    ]
    found = previewed(folder, recipe=recipes)
    (problem,) = found.problems
    assert problem.startswith("int8/eager, int8/torchscript: `exclude` names modules that Net does not have: lost (did")
    assert '(did you mean "last"?)' in problem


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ("error", "KeyError: 'no such width'.\n  File \""),
        ("forward", "ValueError: not today"),
        ("text", "with str in it"),
        ("nan", "NaN or infinities"),
        ("shape", "first output has the shape [2"),
    ],
)
@pytest.mark.slow
def test_a_module_that_does_not_work_is_one_message(gives: str, said: str, folder: Path) -> None:
    model = {"kind": "factory", "factory": "preview_net:Net", "arguments": {"gives": gives}}
    (problem,) = previewed(folder, model=model).problems
    assert said in problem


class TwoArgumentsError(Exception):
    """Cannot be unpickled: pickle gives its constructor the message alone."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}:\n\n  a line below\n  and a third")


@pytest.mark.parametrize("kind", [None, SystemExit, RecursionError])
@pytest.mark.slow
def test_a_librarys_error_and_output_are_one_line_of_their_candidate(
    kind: type[BaseException] | None, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        sys.stderr.write("Traceback (most recent call last): of the library's\n")
        os.write(2, b"a log of the library's\n")
        raise kind("left and right:\n\n  a line below") if kind else TwoArgumentsError("left", "right")

    monkeypatch.setattr("torch.jit.freeze", fail)
    found = previewed(folder)
    (problem,) = found.problems
    name = kind.__name__ if kind else "TwoArgumentsError"
    assert problem == (
        f"float/torchscript, static-int8/torchscript: The candidate cannot be built for torchscript: {name}: "
        f"left and right: a line below in test_preview.py, line {fail.__code__.co_firstlineno + 3}. "
        "--debug shows the traceback."
    )
    obstacles = {str(each.candidate): bool(each.obstacle) for each in found.candidates}
    assert obstacles == {"float/eager": False, "float/torchscript": True} | {
        "static-int8/eager": False,
        "static-int8/torchscript": True,
    }
    assert found.job is not None
    recipe = found.job.workload.recipe_named("float")
    with pytest.raises(LibraryError) as caught:  # a run's stage gives the same message
        build(Workspace(ArtifactStore(folder / "store")), found.job, recipe, "torchscript")
    assert str(caught.value) == problem.partition(": ")[2]
    assert "of the library's" in caught.value.in_full()
    assert "of the library's" not in "".join(capfd.readouterr())
    assert found.tracebacks
    assert all("of the library's" in each and f"in {fail.__name__}" in each for each in found.tracebacks)


def test_a_failure_before_the_candidates_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TwoArgumentsError("left", "right")

    monkeypatch.setattr("tasks.run.preview.obtain", fail)
    found = previewed(folder)
    (problem,) = found.problems
    assert problem.startswith("Trying out the workload failed: TwoArgumentsError: left and right: a line below in ")
    assert found.splits == {"calibration": 12, "test": 12}
    assert len(found.tracebacks) == 1

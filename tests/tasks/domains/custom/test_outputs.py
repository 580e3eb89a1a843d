"""Models that return dictionaries, dataclasses or nested tuples: their outputs in one row, with names."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.domains.custom.outputs import flat, names, structure_of, structured
from tasks.job import Workspace
from tasks.preview import preview
from tasks.tensor_files import GOLDEN
from tasks.tensor_files import names_of as names_in
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.pipeline import build, evaluate, job_of

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Answer:
    logits: Tensor
    loss: Tensor | None = None
    hidden: tuple[Tensor, ...] = ()


class Model(nn.Module):
    def __init__(self, shape: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(3, 2), shape

    def forward(self, rows: Tensor) -> Any:
        logits = self.layer(rows)
        return self.shape(logits, logits + 1)


NESTED: list[tuple[Callable[[Tensor, Tensor], Any], tuple[str, ...]]] = [
    (lambda a, b: {"logits": a, "state": b}, ("logits", "state")),
    (lambda a, b: OrderedDict(logits=a, loss=None, state=b), ("logits", "state")),
    (lambda a, b: {"logits": a}, ("logits",)),
    (lambda a, b: Answer(a, hidden=(b, a)), ("logits", "hidden.0", "hidden.1")),
    (lambda a, b: (a, (b, a)), ("0", "1.0", "1.1")),
    (lambda a, b: [a, {"state": b}], ("0", "1.state")),
    (lambda a, b: Pair(a, [b]), ("first", "second.0")),
]
ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("shape", "expected"), NESTED)
def test_outputs_stand_in_one_row_in_the_models_order_and_are_named_by_their_paths(shape, expected) -> None:
    model = flat(Model(shape))
    structure = structure_of(model, (ROWS,))
    assert names(structure) == expected
    row = model(ROWS)
    assert isinstance(row, tuple)
    assert [type(each) for each in row] == [Tensor] * len(expected)
    assert torch.equal(row[0], model.layer(ROWS))


@pytest.mark.parametrize(("shape", "expected"), NESTED)
def test_training_gets_the_structure_back(shape, expected) -> None:
    model = flat(Model(shape))
    structure, row = structure_of(model, (ROWS,)), model(ROWS)
    with structured(model, structure):
        again = model(ROWS)
    assert type(again) is type(structure)
    assert names(again) == expected
    assert isinstance(model(ROWS), tuple)
    assert len(model(ROWS)) == len(row)


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(QuantizationError, match=r'"cache\.1" has the type str, but only tensors'):
        flat(Model(lambda a, b: {"logits": a, "cache": (b, "text")}))(ROWS)


NAMED = (
    CODE
    + """
from dataclasses import dataclass

@dataclass
class Answer:
    embedding: torch.Tensor
    logits: torch.Tensor
    loss: torch.Tensor | None = None

class Named(Linear):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)

    def forward(self, rows):
        found = torch.relu(self.first(rows))
        return Answer(found, self.layer(found))

class Dictionary(Named):
    def forward(self, rows):
        answer = super().forward(rows)
        return {"embedding": answer.embedding, "more": (answer.logits,)}

def train_answer(model, splits, seed, epochs):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows, label in splits["train"]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows[None]).logits, torch.tensor([label])).backward()
        optimizer.step()
"""
)
RECIPES = [
    {"name": "float", "method": "none", "runtimes": ["eager", "torchscript", "onnxruntime"]},
    {"name": "static", "method": "static", "calibration_batches": 1, "runtimes": ["torchscript", "onnxruntime"]},
    {"name": "dynamic", "method": "dynamic", "modules": ["Linear"], "runtimes": ["eager", "torchscript"]},
    {"name": "qat", "method": "qat", "epochs": 1, "runtimes": ["torchscript"]},
]
TRAINED = {"kind": "train", "train": "own_code:train_answer"}


@pytest.mark.slow
def test_every_method_gives_the_outputs_of_a_dataclass(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    write(tmp_path, NAMED)
    workload = own(
        tmp_path,
        model={"kind": "factory", "factory": "own_code:Named"},
        checkpoint=TRAINED,
        evaluate={"metric": "accuracy", "output": "logits"},
        recipe=RECIPES,
    )
    job = job_of(workload, store)
    qualities = {}
    for recipe in workload.recipe:
        for runtime in recipe.runtimes:
            made = evaluate(job, build(job, recipe.name, runtime, store), store)
            golden = store.path(made.outputs.kind, made.outputs.digest) / GOLDEN
            assert golden_names(golden) == ["embedding", "logits"]
            assert load_file(golden)["output.1"].shape[1:] == (2,)
            qualities[recipe.name, runtime] = made.quality
    assert len({round(qualities["float", runtime], 6) for runtime in RECIPES[0]["runtimes"]}) == 1


def golden_names(path: Path) -> list[str]:
    with safe_open(path, framework="np") as file:
        return list(names_in(file.metadata())[1])


@pytest.mark.slow
def test_the_preview_shows_the_names_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    write(tmp_path, NAMED)
    model = {"kind": "factory", "factory": "own_code:Dictionary"}
    found = preview(own(tmp_path, model=model, evaluate={"metric": "accuracy", "output": "more.0"}), Workspace(store))
    assert not found.problems
    assert found.outputs == "embedding float32 [1, 3], more.0 float32 [1, 2]"
    wrong = own(tmp_path, model=model, evaluate={"metric": "accuracy", "output": "more"})
    (problem,) = preview(wrong, Workspace(store)).problems
    assert problem.startswith('evaluate.output: the model does not have an output "more"')
    assert "Choose one of the model's outputs: embedding, more.0." in problem

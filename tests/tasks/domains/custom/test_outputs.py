"""Models that return dictionaries: their outputs in one row, with names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import ModelOutput

from storage.artifacts import ArtifactStore
from tasks.data.outputs import flat, output_names, structured
from tasks.data.tensor_files import GOLDEN
from tasks.data.tensor_files import names_of as names_in
from tasks.run.preview import preview
from tasks.values.job import Workspace
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.pipeline import build, evaluate, job_of


@dataclass
class Answer(ModelOutput):  # type: ignore[misc]
    logits: Tensor | None = None
    loss: Tensor | None = None
    state: Tensor | None = None


class Model(nn.Module):
    def __init__(self, shape: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.shape = nn.Linear(3, 2), shape

    def forward(self, rows: Tensor) -> Any:
        logits = self.layer(rows)
        return self.shape(logits, logits + 1)


ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "shape",
    [
        lambda a, b: {"logits": a, "state": b},
        lambda a, b: OrderedDict(logits=a, loss=None, state=b),
        lambda a, b: Answer(logits=a, state=b),
    ],
)
def test_a_dictionary_becomes_a_tuple_and_training_gets_the_dictionary_back(shape: Callable[..., Any]) -> None:
    structure = Model(shape)(ROWS)
    assert output_names(structure) == ("logits", "state")
    model = flat(Model(shape))
    row = model(ROWS)
    assert [type(each) for each in row] == [Tensor, Tensor]
    assert torch.equal(row[0], model.layer(ROWS))
    with structured(model, structure):
        again = model(ROWS)
    assert type(again) is type(structure)
    assert torch.equal(again["state"], row[1])
    assert isinstance(model(ROWS), tuple)


NAMED = (
    CODE
    + """
class Named(Linear):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)

    def forward(self, rows):
        found = torch.relu(self.first(rows))
        return {"embedding": found, "logits": self.layer(found)}

def train_answer(model, splits, seed, epochs):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows, label in splits["train"]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows[None])["logits"], torch.tensor([label])).backward()
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
def test_every_method_gives_the_outputs_of_a_dictionary(tmp_path: Path) -> None:
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
    model = {"kind": "factory", "factory": "own_code:Named"}
    found = preview(own(tmp_path, model=model, evaluate={"metric": "accuracy", "output": "logits"}), Workspace(store))
    assert not found.problems
    assert found.outputs == "embedding float32 [1, 3], logits float32 [1, 2]"
    wrong = own(tmp_path, model=model, evaluate={"metric": "accuracy", "output": "logit"})
    (problem,) = preview(wrong, Workspace(store)).problems
    assert problem.startswith('evaluate.output: the model does not have an output "logit"')
    assert "Choose one of the model's outputs: embedding, logits." in problem

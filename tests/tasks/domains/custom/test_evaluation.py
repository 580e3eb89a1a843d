"""Quality of the user's models against the same in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError, MeasurementError, NightquantError, QuantizationError
from tasks.data.samples import load_samples, load_test
from tasks.data.weights import load_state
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.pipeline import build, build_model, converted, evaluate, job_of

REGRESSION = """
def numbers(rows=40):
    generator = torch.Generator().manual_seed(0)
    items = [(torch.randn(3, generator=generator), torch.randn(2, generator=generator)) for _ in range(rows)]
    return {"calibration": items[:10], "test": items[10:]}

def largest(outputs, target):
    return (outputs - target).abs().amax(1)

def spread(outputs, target):
    return float((outputs - target).std())

def wrong(outputs, target):
    return "good"

def failing(outputs, target):
    raise ValueError("no such thing")
"""
INT8 = [
    {"name": "float", "method": "none"},
    {"name": "int8", "method": "static", "calibration_batches": 1, "calibration_batch_size": 10},
]


def f1(outputs: Tensor, target: Tensor) -> Tensor:
    guess, found = outputs.argmax(1), []
    for label in (0, 1):
        hits = ((guess == label) & (target == label)).sum()
        found.append(2 * hits / ((guess == label).sum() + (target == label).sum()))
    return torch.stack(found).mean()


def roc(outputs: Tensor, target: Tensor) -> Tensor:
    score = outputs.double().diff(dim=1)[:, 0]
    differences = score[target == 1][:, None] - score[target == 0]
    return ((differences > 0).double() + (differences == 0) / 2).mean()


EXPECTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": lambda outputs, target: (outputs.argmax(1) == target).double().mean() * 100,
    "loss": functional.cross_entropy,
    "perplexity": lambda outputs, target: functional.cross_entropy(outputs.double(), target).exp(),
    "f1-macro": f1,
    "auroc": roc,
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "own_code:largest": lambda outputs, target: (outputs - target).abs().amax(1).mean(),
    "own_code:spread": lambda outputs, target: (outputs - target).std(),
}
REGRESSIONS = {"mse", "mae", "own_code:largest", "own_code:spread"}


def sections(metric: str, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"metric": metric, "batch_size": 7}
    if ":" in metric:
        settings |= {"higher_is_better": False, "unit": "V"}
    data = {"kind": "factory", "factory": f"own_code:{'numbers' if metric in REGRESSIONS else 'splits'}"}
    return {"evaluate": settings, "data": data, "recipe": INT8} | changes


@pytest.mark.parametrize("recipe", ["float", "int8"])
@pytest.mark.parametrize("metric", EXPECTED)
@pytest.mark.slow
def test_the_quality_is_that_of_plain_torch(tmp_path: Path, metric: str, recipe: str) -> None:
    write(tmp_path, CODE + REGRESSION)
    store = ArtifactStore(tmp_path)
    job = job_of(own(tmp_path, **sections(metric)), store)
    found = evaluate(job, build(job, recipe, "eager", store), store)
    (batch,) = load_samples(job.dataset, "test", store).batches(100)
    assert batch.target is not None
    if recipe == "float":
        model = build_model(job.workload, job.dataset)
        model.load_state_dict(load_state(job.checkpoint, store))
    else:
        model = converted(job, recipe, store)
    with torch.inference_mode():
        outputs = model(*batch.inputs)
    assert found.quality == pytest.approx(float(EXPECTED[metric](outputs, batch.target)), abs=1e-6)
    assert found.samples == batch.size
    assert found.quality_metric == (f"{metric.partition(':')[2]} (V)" if ":" in metric else metric)


TAGGING = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, steps):
        return self.layer(steps - steps.mean(1, keepdim=True)).transpose(1, 2)

def tagged():
    generator = torch.Generator().manual_seed(0)
    lengths = [2 + index % 5 for index in range(30)]
    items = [(torch.randn(length, 2, generator=generator), torch.arange(length) % 4) for length in lengths]
    return {"calibration": items, "test": items}

def pad_tags(items):
    steps, tags = zip(*items)
    pad = nn.utils.rnn.pad_sequence
    return pad(steps, batch_first=True), pad(tags, batch_first=True, padding_value=-100)
"""


def plain_perplexity(rows: list[tuple[Tensor, Tensor]]) -> float:
    logits, target = (torch.cat(list(parts), dim=-1) for parts in zip(*rows, strict=True))
    return functional.cross_entropy(logits.T.double(), target).exp().item()


def test_rows_of_different_lengths_are_evaluated_without_padding_as_by_plain_torch(tmp_path: Path) -> None:
    write(tmp_path, CODE + TAGGING)
    store = ArtifactStore(tmp_path)
    data = {"kind": "factory", "factory": "own_code:tagged", "collate": "own_code:pad_tags", "batch_size": 4}
    model, recipe = {"kind": "factory", "factory": "own_code:Tagger"}, [INT8[0]]
    job = job_of(own(tmp_path, data=data, model=model, evaluate={"metric": "perplexity"}, recipe=recipe), store)
    found = evaluate(job, build(job, "float", "eager", store), store)
    network = build_model(job.workload, job.dataset)
    network.load_state_dict(load_state(job.checkpoint, store))
    batches = load_test(job.dataset, store, singly=True).batches(1)
    with torch.inference_mode():
        rows = [(network(*batch.inputs)[0], batch.target[0]) for batch in batches if batch.target is not None]
    assert found.quality == pytest.approx(plain_perplexity(rows), abs=1e-6)
    assert found.contributions == "resampled"


FORWARDS = {
    "return {'logits': self.layer(rows), 'note': 'text'}": (QuantizationError, "with str in it"),
    "return self.layer(rows) * torch.nan": (MeasurementError, "returns NaN or infinities"),
    "return self.layer(rows).mean()": (MeasurementError, r"shape \[\] for 7 input rows"),
    "return self.layer(rows)[:3]": (MeasurementError, r"shape \[3, 2\] for 7 input rows"),
    "return self.layer(rows)[..., None]": (MeasurementError, r"outputs of shape \[7, 2, 1\]"),
    "return rows @ rows": (ConfigurationError, r"forward failed on inputs \[7, 3\]: RuntimeError[^$]*own_code"),
    "raise ValueError('not today')": (ConfigurationError, r"ValueError: not today[^$]*in forward"),
}


@pytest.mark.parametrize("body", FORWARDS)
def test_a_model_that_does_not_fit_its_data_is_one_clear_message(tmp_path: Path, body: str) -> None:
    error, message = FORWARDS[body]
    write(tmp_path, CODE.replace("return self.layer(rows)", body))
    with pytest.raises(error, match=message) as caught:
        job_of(own(tmp_path, **sections("accuracy")), ArtifactStore(tmp_path))
    assert "tasks/" not in str(caught.value)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("own_code:wrong", "returned a str for 30 rows"),
        ("own_code:failing", r"ValueError: no such thing[^$]*in failing"),
        ("own_code:missing", "own_code does not define missing"),
    ],
)
def test_a_metric_that_fails_is_one_clear_message(tmp_path: Path, metric: str, message: str) -> None:
    write(tmp_path, CODE + REGRESSION)
    store = ArtifactStore(tmp_path)
    changes = sections(metric, data={"kind": "factory", "factory": "own_code:numbers"})
    job = job_of(own(tmp_path, **changes), store)
    with pytest.raises(NightquantError, match=message):
        evaluate(job, build(job, "float", "eager", store), store)


@pytest.mark.slow
def test_targets_that_the_metric_cannot_take_are_named(tmp_path: Path) -> None:
    write(tmp_path, CODE + REGRESSION)
    changes = sections("accuracy", data={"kind": "factory", "factory": "own_code:numbers"})
    with pytest.raises(MeasurementError, match=r"needs one class per row.*has float32 targets of shape \[7, 2\]"):
        job_of(own(tmp_path, **changes), ArtifactStore(tmp_path))

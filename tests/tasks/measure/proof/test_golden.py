from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from tasks.data.tensor_files import Golden
from tasks.measure.proof.golden import SINGLES, TOGETHER, batching, golden_cases
from tasks.values.job import Job, Workspace
from tasks.workload import Workload
from tests.tasks import pipeline
from tests.tasks.runtimes.conftest import MakeJob


@pytest.fixture
def job(words: MakeJob) -> Job[Workload]:
    return words({"name": "int8", "method": "dynamic", "modules": ["LSTM", "Linear"]}, benchmark={"sequence_length": 5})


def cases(job: Job[Workload], recipe: str, kept: ArtifactStore):
    model = pipeline.opened(pipeline.build(job, recipe, "eager", kept), kept)
    with model.scope(), torch.inference_mode():
        return golden_cases(job, model.call, Workspace(kept))


def test_there_are_single_samples_with_a_state_and_a_batch_of_some(job: Job[Workload], store: ArtifactStore) -> None:
    golden, _ = cases(job, "float", store)
    *singles, few = golden.further
    assert len(singles) == SINGLES
    assert {tuple(single.inputs["tokens"].shape) for single in singles} == {(3, 1)}
    assert all(single.inputs["h"].abs().sum() > 0 for single in singles)
    assert len({single.inputs["tokens"].sum().item() for single in singles}) > 1
    assert few.inputs["tokens"].shape == (3, TOGETHER)
    assert golden.inputs["tokens"].shape == (5, 1)


@pytest.mark.slow
def test_a_shared_range_shows_and_rounding_does_not(job: Job[Workload], store: ArtifactStore) -> None:
    _, float_rows = cases(job, "float", store)
    _, int8_rows = cases(job, "int8", store)
    assert float_rows is not None
    assert int8_rows is not None
    assert float_rows.difference < 1e-5 < int8_rows.difference


def rows(*values: list[float]) -> list[Golden]:
    return [Golden({}, (torch.tensor([each]),)) for each in values]


def whole(*values: list[float]) -> tuple[Tensor, ...]:
    return (torch.tensor(values),)


def test_differences_are_shares_of_the_range_and_choices_are_counted() -> None:
    found = batching(rows([0.0, 1.0], [4.0, 2.0]), whole([0.0, 1.0], [1.0, 2.0]), chooses=True)
    assert (found.difference, found.changed) == (1.5, 0.5)
    assert batching(rows([0.0, 1.0]), whole([0.0, 1.0]), chooses=False).changed is None


def test_an_output_for_the_entire_batch_is_not_compared_by_rows() -> None:
    assert batching(rows([1.0], [2.0]), (torch.tensor([[3.0]]),), chooses=False).difference == 0.0


@pytest.mark.parametrize("place", [0, 1])
def test_a_difference_that_is_not_a_number_is_not_taken_for_zero(place: int) -> None:
    outputs = [torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [2.0]])]
    outputs[place] = outputs[place] * math.nan
    singles = [Golden({}, (torch.tensor([[row]]), torch.tensor([[row]]))) for row in (1.0, 2.0)]
    assert math.isnan(batching(singles, outputs, chooses=False).difference)

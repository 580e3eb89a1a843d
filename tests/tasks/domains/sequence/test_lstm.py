"""The bare LSTM workload, against PyTorch's recipe carried out step by step."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from flows.request import BUILT_IN
from storage.artifacts import ArtifactStore
from tasks.data.weights import load_state
from tasks.measure.evaluate import compare
from tasks.workload import Workload, find_workloads
from tests.tasks.pipeline import build, evaluate, example_inputs, job_of, obtain, prepare


@pytest.fixture(scope="module")
def workload() -> Workload:
    return find_workloads(["lstm-demo"], BUILT_IN)[0]


def drawn_by_the_recipe() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, nn.LSTM]:
    with torch.random.fork_rng():
        torch.manual_seed(29592)
        inputs, h, c = torch.randn(20, 1, 8), torch.randn(1, 1, 8), torch.randn(1, 1, 8)
        return inputs, h, c, nn.LSTM(8, 8, 1)


@pytest.mark.slow
def test_inputs_and_weights_are_the_recipes(workload: Workload, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    dataset = prepare(workload, store)
    inputs, h, c, lstm = drawn_by_the_recipe()
    for ours, theirs in zip(example_inputs(workload, dataset, store).values(), (inputs, h, c), strict=True):
        assert torch.equal(ours, theirs)
    state = load_state(obtain(workload, dataset, store), store)
    assert {name: tensor.tolist() for name, tensor in state.items()} == {
        f"lstm.{name}": tensor.tolist() for name, tensor in lstm.state_dict().items()
    }


def test_the_numbers_are_the_recipes(workload: Workload, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    job = job_of(workload, store)
    baseline = evaluate(job, build(job, "float", "eager", store), store)
    result = evaluate(job, build(job, "dynamic-int8", "eager", store), store)
    inputs, h, c, lstm = drawn_by_the_recipe()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        small = torch.ao.quantization.quantize_dynamic(nn.Sequential(lstm), {nn.LSTM}, dtype=torch.qint8)[0]
        expected, actual = lstm(inputs, (h, c))[0], small(inputs, (h, c))[0]
    assert baseline.quality == 0
    assert result.metrics["float_mean_absolute_output"] == pytest.approx(expected.abs().mean().item())
    assert result.metrics["mean_absolute_output"] == pytest.approx(actual.abs().mean().item(), rel=1e-5)
    percent = 100 * (expected - actual).abs().mean().item() / expected.abs().mean().item()
    assert result.quality == pytest.approx(percent, rel=1e-3)
    comparison = compare(baseline, result, store)
    assert comparison.quality_difference == result.quality
    assert comparison.quality_difference_low is None

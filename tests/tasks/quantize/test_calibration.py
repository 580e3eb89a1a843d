from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.ao.quantization import HistogramObserver

from storage.errors import QuantizationError
from tasks.job import silent
from tasks.quantize.calibration import calibrate


def test_calibration_runs_the_first_batches_and_reports_each() -> None:
    model, seen, progress = nn.Linear(2, 2), [], []
    model.register_forward_hook(lambda *_: seen.append(1))
    batches = ((torch.ones(3, 2),) for _ in range(5))
    calibrate(model, batches, 3, "tiny", lambda done, total, unit="": progress.append((done, total)))
    assert len(seen) == 3
    assert progress == [(1, 3), (2, 3), (3, 3)]


def test_an_empty_calibration_set_is_refused() -> None:
    with pytest.raises(QuantizationError, match=r'"tiny" has no calibration samples.*data.calibration'):
        calibrate(nn.Linear(2, 2), iter(()), 3, "tiny", silent)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), HistogramObserver()])
def test_activations_that_are_not_finite_are_refused_with_their_batch(model: nn.Module) -> None:
    batches = [(torch.ones(1, 2),), (torch.full((1, 2), float("nan")),)]
    with pytest.raises(QuantizationError, match=r"NaN or infinit.*batch 2 of calibration"):
        calibrate(model, batches, 2, "tiny", silent)

"""The evaluation loop, on models that give away what they were shown."""

from typing import get_args

import pytest
import torch

from storage.errors import MeasurementError, QuantizationError
from tasks.data.evaluation import evaluate_batches
from tasks.data.metrics import METRICS
from tasks.data.samples import Batch
from tasks.data.sections import Metric


class Knowing:
    """Reads the class from the first pixel, as far as `classes` goes; `broken` images give NaN."""

    def __init__(self, classes: int, broken: int = -1) -> None:
        self.classes, self.broken = classes, broken

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        values = (images[:, 0, 0, 0] * 255).round().long()
        logits = -(values[:, None] - torch.arange(self.classes)).abs().float()
        logits[values == self.broken] = torch.nan
        return logits


def evaluated(model, values, labels, batch_size=2):
    """Quality on pictures of one pixel's value, three channels of 2 x 2."""
    images = torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 3, 2, 2) / 255
    batches = [
        Batch((images[place],), torch.tensor(labels)[place], len(images[place]))
        for place in (slice(start, start + batch_size) for start in range(0, len(images), batch_size))
    ]
    return evaluate_batches(
        model,
        batches,
        METRICS["top1"],
        total=len(images),
        singly=False,
        also={"top5": "top5"},
        classes=max(labels) + 1,
    )


def test_a_prediction_is_the_most_likely_class_and_top5_counts_the_five_most_likely():
    quality = evaluated(Knowing(9), [0, 4, 4, 4], [0, 4, 6, 7])

    assert quality.samples["prediction"].tolist() == [0, 4, 4, 4]
    assert quality.samples["quality"].tolist() == [100, 100, 0, 0]
    assert quality.metrics == {"top1": 50, "top5": 75}


def test_logits_that_are_not_finite_fail_the_candidate():
    with pytest.raises(MeasurementError, match="NaN or infinities"):
        evaluated(Knowing(9, broken=4), range(7), range(7))


def test_too_few_logits_are_reported():
    with pytest.raises(MeasurementError, match=r"shape \[2, 3\], but the data set has 9 classes"):
        evaluated(Knowing(3), [0, 8], [0, 8])


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda logits: logits[:, :, None, None], r"logits of shape \[2, 2, 1, 1\]"),
        (lambda logits: logits.flatten(), r"shape \[4\] for 2 input rows"),
    ],
)
def test_logits_over_which_labels_would_broadcast_are_refused(form, message):
    with pytest.raises(MeasurementError, match=message):
        evaluated(lambda images: form(Knowing(2)(images)), [0, 1], [0, 1])


@pytest.mark.parametrize(
    ("form", "what"),
    [
        (lambda logits: {"logits": logits}, "a dict"),
        (lambda logits: (logits, None), "a tuple with NoneType in it"),
    ],
)
def test_an_output_that_is_not_a_tensor_is_refused(form, what):
    with pytest.raises(QuantizationError, match=rf"returns {what},.*forward returns the logits"):
        evaluated(lambda images: form(Knowing(2)(images)), [0, 1], [0, 1])


def test_samples_that_are_called_out_of_order_come_back_in_order():
    values = torch.tensor([3.0, 1.0, 2.0, 0.0])
    batches = [Batch((values[rows],), values[rows] + 1, 2, rows) for rows in ([2, 0], [3, 1])]

    quality = evaluate_batches(lambda x: x + torch.tensor([0.0, 3.0]), batches, METRICS["mae"], total=4, singly=False)

    assert quality.samples["output"].tolist() == [6, 4, 2, 0]
    assert quality.samples["quality"].tolist() == [2, 2, 1, 1]


def test_every_metric_that_a_workload_file_may_name_can_be_looked_up():
    assert set(get_args(Metric)) <= METRICS.keys()
    assert all(metric.name == name for name, metric in METRICS.items())

"""Top-1 and top-5 accuracy of an image classifier, in percent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from storage.errors import MeasurementError
from tasks.domains.image_classification.images import ImageSplit
from tasks.outputs import Call, tensors_of

if TYPE_CHECKING:
    from tasks.job import Progress

_TOP = 5


def classify(
    call: Call, split: ImageSplit, batch_size: int, progress: Progress
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Classify a split.

    Parameters
    ----------
    call
        From float32 [B, 3, H, W] to logits [B, K], or to several tensors with these first.
    batch_size
        Images in memory at a time.

    Returns
    -------
    metrics
        ``top1`` and ``top5`` in percent, higher is better.
    samples
        ``quality``: float32 [N], 100 where the top-1 prediction is right, 0 where it is not. ``prediction``: int64 [N].

    Raises
    ------
    MeasurementError
        Logits are NaN or infinite, fewer than there are classes, or not a matrix.
    """
    classes = int(split.labels.max()) + 1
    best: list[Tensor] = []
    done = 0
    with torch.inference_mode():
        for images, _ in split.batches(batch_size):
            logits = tensors_of(call(images))[0]
            _check(logits, classes)
            best.append(logits.topk(min(_TOP, logits.shape[1]), dim=1).indices)
            done += len(images)
            progress(done, len(split), "images")
    predicted = torch.cat(best)
    right = predicted == split.labels.unsqueeze(1)
    samples = {"quality": right[:, 0].float() * 100, "prediction": predicted[:, 0].contiguous()}
    # In double precision: that of float32 is no percentage's sixth place.
    top1, top5 = (100 * found.double().mean().item() for found in (right[:, 0], right.any(dim=1)))
    return {"top1": top1, "top5": top5}, samples


def _check(logits: Tensor, classes: int) -> None:
    if logits.dim() != 2:
        # Labels would broadcast over further axes.
        raise MeasurementError(
            f"the model returns logits of shape {list(logits.shape)}, not [images, classes].",
            hint="Add a Flatten behind the model's last layer.",
        )
    if logits.shape[1] < classes:
        raise MeasurementError(
            f"the model returns {logits.shape[1]} logits for {classes} classes.",
            hint="Correct model.num_classes or the factory's arguments.",
        )
    if not logits.isfinite().all():
        raise MeasurementError(
            "the model returns logits that are NaN or infinite.",
            hint="Exclude the module that overflows (`exclude`) or calibrate on more batches.",
        )

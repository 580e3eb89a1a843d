"""Top-1 and top-5 accuracy of an image classifier, in percent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from storage.errors import MeasurementError
from tasks.domains.image_classification.images import ImageSplit, load_images
from tasks.evaluate.outputs import flat_outputs, logits_of, write_outputs
from tasks.job import Progress, silent
from tasks.refs import CandidateRef, DatasetRef
from tasks.results import Evaluation

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.workload.workload import Workload

_TOP = 5


def evaluate_classification(
    workload: Workload,
    quantized: CandidateRef,
    runtime: Runtime,
    dataset: DatasetRef,
    store: ArtifactStore,
    progress: Progress = silent,
) -> Evaluation:
    """Accuracy on the test split: ``top1`` and ``top5`` in percent, higher is better.

    Per sample it keeps ``quality`` (100 where the top-1 prediction is right, 0 where it is not) and ``prediction``.

    Raises
    ------
    MeasurementError
        The model gives NaN or infinite logits, fewer logits than there are classes, or logits that are no matrix.
    """
    from tasks.models import example_inputs
    from tasks.quantize import load

    model = load(store.path(quantized.kind, quantized.digest), runtime)
    split = load_images(dataset, "test", store)
    try:
        top = predictions(model, split, workload.evaluate.batch_size, progress)
    except MeasurementError as error:
        raise MeasurementError(
            f'Recipe "{quantized.recipe}" ({runtime}) of workload "{workload.name}": {error.message}', hint=error.hint
        ) from error
    right = top == split.labels.unsqueeze(1)
    samples = {"quality": right[:, 0].float() * 100, "prediction": top[:, 0].contiguous()}
    metrics = {"top1": samples["quality"].mean().item(), "top5": right.any(dim=1).float().mean().item() * 100}
    inputs = example_inputs(workload, dataset, store)
    return Evaluation(
        recipe=quantized.recipe,
        runtime=runtime,
        quality_metric="top1",
        quality=metrics["top1"],
        higher_is_better=True,
        metrics=metrics,
        mode="plain",
        samples=len(split),
        outputs=write_outputs(quantized, runtime, inputs, flat_outputs(model, inputs), samples, store),
    )


def predictions(model: nn.Module, split: ImageSplit, batch_size: int, progress: Progress = silent) -> Tensor:
    """The most likely classes of every sample, best first.

    Parameters
    ----------
    batch_size
        Images in memory at a time.

    Returns
    -------
    Tensor
        int64 [N, min(5, K)].

    Raises
    ------
    MeasurementError
        A logit is NaN or infinite, there are fewer than the highest label needs, or they are no matrix.
    """
    model.eval()
    needed = int(split.labels.max()) + 1
    chosen: list[Tensor] = []
    done = 0
    with torch.inference_mode():
        for images, _ in split.batches(batch_size):
            logits = logits_of(model(images))
            if logits.shape[1] < needed:
                raise MeasurementError(
                    f"the model gives {logits.shape[1]} logits for {needed} classes.",
                    hint="Correct model.num_classes or the factory's arguments.",
                )
            if not logits.isfinite().all():
                raise MeasurementError(
                    "the model gives logits that are no numbers.",
                    hint="Exclude the module that overflows (`exclude`) or calibrate on more batches.",
                )
            chosen.append(logits.topk(min(_TOP, logits.shape[1]), dim=1).indices)
            done += len(images)
            progress(done, len(split), "images")
    return torch.cat(chosen)

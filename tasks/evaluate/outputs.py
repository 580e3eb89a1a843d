"""What an evaluation leaves in the store: golden inputs and outputs, and per-sample results."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from storage.artifacts import artifact_digest
from storage.errors import MeasurementError
from tasks.outputs import returned_tensors
from tasks.refs import ArtifactRef, QuantizedRef

if TYPE_CHECKING:
    from collections.abc import Mapping

    from storage.artifacts import ArtifactStore
    from tasks.workload.recipe import Runtime

KIND = "outputs"


def flat_outputs(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Call `model` with the inputs in order; a single tensor becomes a tuple of one."""
    with torch.inference_mode():
        return returned_tensors(model(*inputs.values()))


def logits_of(result: Any) -> Tensor:
    """The logits [N, K] of what a classifier returns: all of it, or the first of several tensors.

    Raises
    ------
    MeasurementError
        They have other axes, over which labels would broadcast.
    QuantizationError
        The model returns something else than tensors.
    """
    logits = returned_tensors(result)[0]
    if logits.dim() != 2:
        raise MeasurementError(
            f"the model gives logits of shape {list(logits.shape)}, not [images, classes].",
            hint="Add a Flatten behind the model's last layer.",
        )
    return logits


def write_outputs(
    quantized: QuantizedRef,
    runtime: Runtime,
    inputs: Mapping[str, Tensor],
    outputs: tuple[Tensor, ...],
    samples: Mapping[str, Tensor],
    store: ArtifactStore,
) -> ArtifactRef:
    """Write ``golden.safetensors`` (``input.<name>``, ``output.<i>``) and ``samples.safetensors``.

    The digest covers the bytes that were computed: evaluations are never looked up by what they were made from.
    """
    golden = {f"input.{name}": tensor.contiguous() for name, tensor in inputs.items()}
    golden |= {f"output.{index}": tensor.contiguous() for index, tensor in enumerate(outputs)}
    files = {
        "golden.safetensors": save(golden),
        "samples.safetensors": save({name: tensor.contiguous() for name, tensor in samples.items()}),
    }
    made_from = {
        "quantized": quantized.digest,
        "runtime": runtime,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    digest = artifact_digest(KIND, made_from)
    if store.find(KIND, digest) is None:
        with store.create(KIND, digest, made_from) as folder:
            for name, content in files.items():
                (folder / name).write_bytes(content)
    return ArtifactRef(kind=KIND, digest=digest)

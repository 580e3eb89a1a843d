"""Checkpoints in the store: tensors only, checked before anything else relies on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import InputError, StoreError
from tasks.checkpoint.fit import check_fit
from tasks.refs import CheckpointRef, DatasetRef
from tasks.tensor_files import save_tensors
from tasks.workload import Workload

KIND = "checkpoint"
WEIGHTS_FILE = "weights.safetensors"


def find_or_make(
    workload: Workload,
    dataset: DatasetRef,
    store: ArtifactStore,
    made_from: Mapping[str, Any],
    make: Callable[[], Mapping[str, Tensor]],
) -> CheckpointRef:
    """The checkpoint that `made_from` decides: from the store, or made, checked and stored.

    Raises
    ------
    InputError
        The weights do not fit the workload, or some are NaN or infinite.
    """
    digest = artifact_digest(KIND, made_from)
    folder = store.find(KIND, digest)
    if folder is not None:
        # The code that builds the model may have changed since, and need not be in the digest.
        check_fit(_shapes(folder / WEIGHTS_FILE), workload, dataset)
    else:
        state = plain_tensors(make())
        check_fit(state, workload, dataset)
        _check_finite(state, workload.name)
        with store.create(KIND, digest, made_from) as work:
            save_tensors(state, work / WEIGHTS_FILE)
    return describe(digest, store)


def describe(digest: str, store: ArtifactStore) -> CheckpointRef:
    """The reference of a checkpoint that is in the store."""
    shapes = _shapes(store.path(KIND, digest) / WEIGHTS_FILE)
    return CheckpointRef(kind=KIND, digest=digest, parameters=sum(tensor.numel() for tensor in shapes.values()))


def read(checkpoint: CheckpointRef, store: ArtifactStore) -> dict[str, Tensor]:
    """The state dict of a checkpoint that is in the store.

    Raises
    ------
    StoreError
        It is not there, or its file is damaged.
    """
    path = store.path(checkpoint.kind, checkpoint.digest) / WEIGHTS_FILE
    with _sound(path):
        state: dict[str, Tensor] = load_file(path)
    return state


def _shapes(path: Path) -> dict[str, Tensor]:
    """The state dict without its numbers, from the file's header."""
    with _sound(path), safe_open(path, framework="pt") as weights:
        return {
            key: torch.empty(weights.get_slice(key).get_shape(), device="meta")
            for key in weights.keys()  # noqa: SIM118 - not a mapping
        }


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise StoreError(
            f"{path}: damaged: {error}.", hint="Remove its folder and run the night again; it is made anew."
        ) from error


def plain_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU that share no memory, floating-point ones as float32."""
    return {
        name: tensor.detach()
        .to(device="cpu", dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        .contiguous()
        for name, tensor in state.items()
    }


def _check_finite(state: Mapping[str, Tensor], name: str) -> None:
    broken = [key for key, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if broken:
        raise InputError(
            f'The weights of workload "{name}" hold NaN or infinite values: {", ".join(broken)}.',
            hint="Train them again with a lower learning rate, or fetch another checkpoint.",
        )

"""Float weights: trained here, fetched, drawn from a seed, or what else a domain has; checked and kept as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import ConfigurationError, InputError
from storage.messages import shown
from storage.transfer import fetch
from tasks.checkpoint.fit import build_blank, fit, shortened
from tasks.checkpoint.state_file import StateDict, read_state
from tasks.compute import training_device
from tasks.domains import DOMAINS
from tasks.domains.base import Trains
from tasks.job import Workspace
from tasks.refs import CheckpointRef, DatasetRef
from tasks.sources import code_digest, model_digest
from tasks.tensor_files import save_tensors
from tasks.workload import Workload
from tasks.workload.base import FetchedCheckpoint, SeededCheckpoint

__all__ = ["build_blank", "find_or_make", "load_state", "obtain", "read_fetched"]

KIND = "checkpoint"
WEIGHTS_FILE = "weights.safetensors"


def obtain(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    """Find the workload's float weights in the store; otherwise get them as ``checkpoint.kind`` says, and store them.

    Raises
    ------
    InputError
        The weights are missing, broken, refused, or do not fit the workload and its data set.
    ConfigurationError
        The ``[checkpoint]`` section asks for something impossible.
    StoreError
        The store cannot be written.
    """
    get = _KINDS.get(workload.checkpoint.kind, DOMAINS[workload.domain].obtain_checkpoint)
    return get(workload, dataset, workspace)


def _trained(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    domain = DOMAINS[workload.domain]
    if not isinstance(domain, Trains):
        raise ConfigurationError(
            f'Workload "{workload.name}": checkpoint.kind "train" does not fit domain "{workload.domain}", '
            f"which {Trains.lack}.",
            hint="Use another checkpoint.kind.",
        )
    trainer: Trains[Workload] = domain
    made_from = {
        **_decisive(workload, dataset, trainer.train),
        "checkpoint": workload.checkpoint.model_dump(mode="json"),
        "device": training_device().type,
    }
    return find_or_make(workload, dataset, workspace, made_from, lambda: trainer.train(workload, dataset, workspace))


def _fetched(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    settings = cast(FetchedCheckpoint, workload.checkpoint)
    with fetch(
        settings.uri,
        workspace.store.root / "downloads",
        sha256=settings.sha256,
        max_bytes=settings.max_bytes,
        retries=settings.retries,
        progress=workspace.progress,
    ) as source:
        made_from = {
            "sha256": source.sha256,
            "model": workload.model.model_dump(mode="json"),
            "vocabulary": dataset.vocabulary,
            "classes": dataset.classes,
            "code": code_digest(read_state.__module__),
        }
        return find_or_make(
            workload, dataset, workspace, made_from, lambda: read_state(source.path(), shown(settings.uri))
        )


def read_fetched(settings: FetchedCheckpoint, workspace: Workspace) -> StateDict:
    """Read the file that ``checkpoint.uri`` names, whatever model it is for.

    Raises
    ------
    InputError
        It cannot be had, or holds no state dict.
    """
    folder = workspace.store.root / "downloads"
    with fetch(settings.uri, folder, sha256=settings.sha256, max_bytes=settings.max_bytes) as source:
        return read_state(source.path(), shown(settings.uri))


def _seeded(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    seed, draw = cast(SeededCheckpoint, workload.checkpoint).seed, DOMAINS[workload.domain].draw_weights
    made_from = {**_decisive(workload, dataset, draw), "seed": seed}
    return find_or_make(workload, dataset, workspace, made_from, lambda: draw(workload, dataset, seed))


def _decisive(workload: Workload, dataset: DatasetRef, make: Callable[..., object]) -> dict[str, object]:
    """What decides weights that are made here, whatever the way."""
    build = DOMAINS[workload.domain].build
    return {
        "model": workload.model.model_dump(mode="json"),
        "dataset": dataset.digest,
        "torch": torch.__version__,
        "code": model_digest(build_blank(lambda: build(workload.model, dataset)), workload.model, build, make),
    }


# Further kinds are a domain's own.
_KINDS: Mapping[str, Callable[[Workload, DatasetRef, Workspace], CheckpointRef]] = {
    "train": _trained,
    "uri": _fetched,
    "seeded": _seeded,
}


def find_or_make(
    workload: Workload,
    dataset: DatasetRef,
    workspace: Workspace,
    made_from: Mapping[str, object],
    make: Callable[[], Mapping[str, Tensor]],
) -> CheckpointRef:
    """The checkpoint that `made_from` decides: from the store, or made, checked and stored.

    Raises
    ------
    InputError
        The weights do not fit the workload, or some are NaN or infinite.
    """
    digest, store = artifact_digest(KIND, made_from), workspace.store
    found = store.find(KIND, digest)
    given = make() if found is None else _shapes(found / WEIGHTS_FILE)
    # A found one too: the code that builds the model may have changed, and need not be in the digest. One that does
    # not fit is not copied: it may claim any size.
    fitted, notes = fit(given, workload, dataset)
    if found is None:
        state = _as_float(fitted)
        broken = [key for key, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
        if broken:
            raise InputError(
                f'The weights of workload "{workload.name}" hold NaN or infinite values: '
                f"{', '.join(shortened(broken))}.",
                hint="Train them again with a lower learning rate, or fetch another checkpoint.",
            )
        with store.create(KIND, digest, made_from) as folder:
            save_tensors(state, folder / WEIGHTS_FILE)
    count = sum(tensor.numel() for tensor in fitted.values())
    return CheckpointRef(kind=KIND, digest=digest, parameters=count, notes=notes)


def load_state(checkpoint: CheckpointRef, store: ArtifactStore) -> dict[str, Tensor]:
    """Load the state dict of a checkpoint in the store; floating-point tensors are float32.

    Raises
    ------
    StoreError
        It is not there, or is damaged.
    """
    state: dict[str, Tensor] = load_file(store.path(checkpoint.kind, checkpoint.digest) / WEIGHTS_FILE)
    return state


def _shapes(path: Path) -> dict[str, Tensor]:
    """The state dict without its numbers."""
    return {key: tensor.to("meta") for key, tensor in load_file(path).items()}


def _as_float(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU that share no memory, floating-point ones as float32."""
    return {
        name: tensor.detach()
        .to(device="cpu", dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        .contiguous()
        for name, tensor in state.items()
    }

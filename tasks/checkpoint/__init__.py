"""Float weights: trained here, fetched, drawn from a seed, or what else a domain has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch

from storage.errors import ConfigurationError
from storage.transfer import fetch
from tasks.checkpoint.artifact import build_blank, find_or_make, load_state
from tasks.checkpoint.state_file import read_state
from tasks.compute import training_device
from tasks.domains import DOMAINS
from tasks.domains.base import Trains
from tasks.job import Workspace
from tasks.refs import CheckpointRef, DatasetRef
from tasks.sources import code_digest, model_digest
from tasks.workload import Workload
from tasks.workload.base import FetchedCheckpoint, SeededCheckpoint

__all__ = ["load_state", "obtain"]


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
    return find_or_make(
        workload, dataset, workspace.store, made_from, lambda: trainer.train(workload, dataset, workspace)
    )


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
            workload, dataset, workspace.store, made_from, lambda: read_state(source.path(), settings.uri)
        )


def _seeded(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    seed, draw = cast(SeededCheckpoint, workload.checkpoint).seed, DOMAINS[workload.domain].draw_weights
    made_from = {**_decisive(workload, dataset, draw), "seed": seed}
    return find_or_make(workload, dataset, workspace.store, made_from, lambda: draw(workload, dataset, seed))


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

"""Obtain, check and store a workload's float weights, which may be trained, downloaded or random."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from safetensors.torch import load_file
from torch import Tensor

from storage.artifacts import artifact_digest
from storage.digest import digest_of
from storage.errors import InputError, shown
from tasks.data.loading import form, load_into, shortened
from tasks.data.weights import WEIGHTS_FILE, StateDict, build_blank, fetch_weights, read_state
from tasks.extensions import DOMAINS
from tasks.job import Workspace
from tasks.outputs import training_device
from tasks.refs import CheckpointRef, DatasetRef
from tasks.sources import code_digest, model_digest
from tasks.tensor_files import save_tensors
from tasks.workload import Workload
from tasks.workload.base import FetchedCheckpoint, SeededCheckpoint

KIND = "checkpoint"


def obtain(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    """Return the workload's float weights; obtain missing weights as ``checkpoint.kind`` specifies."""
    domain = DOMAINS[workload.domain]
    made_from: Mapping[str, object]
    make: Callable[[], Mapping[str, Tensor]]
    match workload.checkpoint:
        case FetchedCheckpoint() as settings:
            return _fetched(settings, workload, dataset, workspace)
        case SeededCheckpoint(seed=seed):
            made_from = {**_digest_inputs(workload, dataset, domain.draw_weights), "seed": seed}
            make = partial(domain.draw_weights, workload, dataset, seed)
        case settings if settings.kind == "train":
            made_from = {
                **_digest_inputs(workload, dataset, domain.train),
                "checkpoint": settings.model_dump(mode="json"),
                "device": training_device().type,
            }
            make = partial(domain.train, workload, dataset, workspace)
        case _:  # domains define further kinds of weights
            made_from, make = domain.weights(workload, dataset)
    return find_or_make(workload, dataset, workspace, made_from, make)


def _fetched(
    settings: FetchedCheckpoint, workload: Workload, dataset: DatasetRef, workspace: Workspace
) -> CheckpointRef:
    build = DOMAINS[workload.domain].build
    layout = build_blank(lambda: build(workload.model, dataset)).state_dict()
    with fetch_weights(settings, workspace) as source:
        made_from = {
            "sha256": source.sha256,
            "model": workload.model.model_dump(mode="json"),
            "layout": digest_of({key: form(tensor) for key, tensor in layout.items()}),
            "code": code_digest(load_into.__module__),
            "leave_out": settings.leave_out,
        }

        def read() -> StateDict:
            return read_state(source.path(), shown(settings.uri)).without(settings.leave_out)

        return find_or_make(workload, dataset, workspace, made_from, read)


def _digest_inputs(workload: Workload, dataset: DatasetRef, make: Callable[..., object]) -> dict[str, object]:
    """Return the values that determine the digest of trained or random weights."""
    build = DOMAINS[workload.domain].build
    return {
        "model": workload.model.model_dump(mode="json"),
        "dataset": dataset.digest,
        "torch": torch.__version__,
        "code": model_digest(build_blank(lambda: build(workload.model, dataset)), workload.model, build, make),
    }


def find_or_make(
    workload: Workload,
    dataset: DatasetRef,
    workspace: Workspace,
    made_from: Mapping[str, object],
    make: Callable[[], Mapping[str, Tensor]],
) -> CheckpointRef:
    """Return the checkpoint that `made_from` identifies; if the store lacks it, make, check and store it."""
    digest, store = artifact_digest(KIND, made_from), workspace.store
    stored = store.find(KIND, digest)
    if stored is None:
        state_dict = make()
    else:
        state_dict = {key: tensor.to("meta") for key, tensor in load_file(stored / WEIGHTS_FILE).items()}
    # Check stored weights too, because the code that builds the model can change without changing the digest. Check
    # before copying, because mismatched weights can declare tensors of any size.
    domain = DOMAINS[workload.domain]
    loaded = load_into(state_dict, lambda: domain.build(workload.model, dataset))
    if loaded.problems:
        raise InputError(
            f'The checkpoint does not match workload "{workload.name}":\n  ' + "\n  ".join(loaded.problems) + "\n",
            hint="Set [model] to the model that the checkpoint was created for, or use another checkpoint.",
        )
    if stored is None:
        state = {
            name: tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
            for name, tensor in loaded.tensors.items()
        }
        broken = [key for key, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
        if broken:
            raise InputError(
                f'These weights of workload "{workload.name}" contain NaN or infinities: '
                f"{', '.join(shortened(broken))}.",
                hint="Train the model again with a lower learning rate, or fetch another checkpoint.",
            )
        with store.create(KIND, digest, made_from) as folder:
            save_tensors({name: tensor.contiguous() for name, tensor in state.items()}, folder / WEIGHTS_FILE)
    count = sum(tensor.numel() for tensor in loaded.tensors.values())
    return CheckpointRef(kind=KIND, digest=digest, parameters=count, notes=loaded.notes)

"""Obtain, check and store a workload's float weights, which may be trained, downloaded or random."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from storage.artifacts import artifact_digest
from storage.digest import digest_of
from storage.errors import InputError, shown
from tasks.data.loading import form, load_into, shortened
from tasks.data.weight_files import fetch_weights
from tasks.data.weights import WEIGHTS_FILE, StateDict, build_blank, read_state
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
    """Return the workload's float weights; obtain missing weights as ``checkpoint.kind`` specifies.

    Raises
    ------
    InputError
        The weights are missing, damaged or refused, or do not match the workload and its data set.
    """
    match workload.checkpoint.kind:
        case "train":
            return _trained(workload, dataset, workspace)
        case "uri":
            return _fetched(workload, dataset, workspace)
        case "seeded":
            return _seeded(workload, dataset, workspace)
    # Domains define further kinds of weights.
    made_from, load = DOMAINS[workload.domain].weights(workload, dataset)
    return find_or_make(workload, dataset, workspace, made_from, load)


def _trained(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    train = DOMAINS[workload.domain].train
    made_from = {
        **_digest_inputs(workload, dataset, train),
        "checkpoint": workload.checkpoint.model_dump(mode="json"),
        "device": training_device().type,
    }
    return find_or_make(workload, dataset, workspace, made_from, lambda: train(workload, dataset, workspace))


def _fetched(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    settings, build = cast(FetchedCheckpoint, workload.checkpoint), DOMAINS[workload.domain].build
    layout = build_blank(lambda: build(workload.model, dataset)).state_dict()
    with fetch_weights(settings, workspace) as source:
        made_from = {
            "sha256": source.sha256,
            "model": workload.model.model_dump(mode="json"),
            "vocabulary": dataset.vocabulary,
            "classes": dataset.classes,
            "layout": digest_of({key: form(tensor) for key, tensor in layout.items()}),
            "code": code_digest(read_state.__module__),
            "leave_out": settings.leave_out,
        }

        def read() -> StateDict:
            return read_state(source.path(), shown(settings.uri)).without(settings.leave_out)

        return find_or_make(workload, dataset, workspace, made_from, read)


def _seeded(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    seed, draw = cast(SeededCheckpoint, workload.checkpoint).seed, DOMAINS[workload.domain].draw_weights
    made_from = {**_digest_inputs(workload, dataset, draw), "seed": seed}
    return find_or_make(workload, dataset, workspace, made_from, lambda: draw(workload, dataset, seed))


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
    fitted, notes = fit(state_dict, workload, dataset)
    if stored is None:
        state = _as_float(fitted)
        broken = [key for key, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
        if broken:
            raise InputError(
                f'These weights of workload "{workload.name}" contain NaN or infinities: '
                f"{', '.join(shortened(broken))}.",
                hint="Train the model again with a lower learning rate, or fetch another checkpoint.",
            )
        with store.create(KIND, digest, made_from) as folder:
            save_tensors(state, folder / WEIGHTS_FILE)
    count = sum(tensor.numel() for tensor in fitted.values())
    return CheckpointRef(kind=KIND, digest=digest, parameters=count, notes=notes)


def _as_float(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to separate, contiguous CPU memory, and convert floating-point tensors to float32."""
    return {
        name: tensor.detach()
        .to(device="cpu", dtype=torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        .contiguous()
        for name, tensor in state.items()
    }


def fit(
    state: Mapping[str, Tensor], workload: Workload, dataset: DatasetRef
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the model's tensors after loading a state dict, and notes about changed keys; see `load_into`."""
    domain = DOMAINS[workload.domain]
    loaded = load_into(state, lambda: domain.build(workload.model, dataset))
    if loaded.problems:
        shapes = {key: tuple(tensor.shape) for key, tensor in loaded.tensors.items()}
        raise InputError(
            f'The checkpoint does not match workload "{workload.name}":\n  ' + "\n  ".join(loaded.problems) + "\n",
            hint=domain.fit_hint(shapes, workload, dataset),
        )
    return loaded.tensors, loaded.notes

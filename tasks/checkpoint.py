"""Obtain, check and store a workload's float weights, which may be trained, downloaded or random.

Weights that do not match the workload's model are refused. The checkpoint's notes list accepted differences
between the weights file and the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from storage.artifacts import artifact_digest
from storage.errors import InputError, shown
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
_MOST_SHOWN, _LONGEST_KEY = 10, 200
_MOST_WRAPPERS = 3  # DataParallel, torch.compile and LightningModule, for example, each add a prefix to all keys
_COUNT = "num_batches_tracked"
_COUNTS_SINCE = 2  # the layer version in which PyTorch 0.4.1 added `_COUNT` to normalization layers
# Data types that store weights without a scale; other types, such as float8, need a separate scale.
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def obtain(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    """Return the workload's float weights; obtain missing weights as ``checkpoint.kind`` specifies.

    Raises
    ------
    InputError
        The weights are missing, damaged or refused, or do not match the workload and its data set.
    ConfigurationError
        A setting in the ``[checkpoint]`` section cannot be used.
    StoreError
        The store is not writable.
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
    settings = cast(FetchedCheckpoint, workload.checkpoint)
    with fetch_weights(settings, workspace) as source:
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
    """Return the checkpoint that `made_from` identifies; if the store lacks this checkpoint, make, check and store it.

    Raises
    ------
    InputError
        The weights do not match the workload, or contain NaN or infinities.
    """
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
    """Rename the keys to match the model, without copying data; return the tensors, and notes about the changes.

    Raises
    ------
    InputError
        Keys are missing or unexpected, or tensors differ in shape or type.
    """
    domain = DOMAINS[workload.domain]
    model = build_blank(lambda: domain.build(workload.model, dataset))
    versions, notes = (state.versions, list(state.notes)) if isinstance(state, StateDict) else ({}, [])
    fitted, expected = dict(state), model.state_dict()
    if prefix := _prefix_of_wrappers(fitted, expected):
        notes.append(f'removed the prefix "{prefix}" from every key')
        fitted = {key.removeprefix(prefix): tensor for key, tensor in fitted.items()}
        versions = {name.removeprefix(prefix): version for name, version in versions.items()}
    for key, tied in _ties(model):
        if key not in fitted and tied in fitted:
            fitted[key] = fitted[tied]
            notes.append(f"took {key} from {tied}, because the model ties them")
    # Add missing `_COUNT` keys to state dicts of older layer versions, as `load_state_dict` does.
    old = [
        f"{name}.{_COUNT}".lstrip(".")
        for name, module in model.named_modules()
        if isinstance(module, _NormBase) and module.track_running_stats and versions.get(name, 0) < _COUNTS_SINCE
    ]
    if counts := [key for key in old if key not in fitted]:
        fitted |= {key: torch.tensor(0) for key in counts}
        notes.append(f"set {len(counts)} x {_COUNT} to 0, because files from before PyTorch 0.4.1 lack them")
    converted = {tensor.dtype for tensor in fitted.values() if tensor.is_floating_point()} - {torch.float32}
    notes += [
        f"converted {str(dtype).removeprefix('torch.')} values to float32" for dtype in sorted(converted, key=str)
    ]
    if problems := list(_problems(fitted, expected)):
        shapes = {key: tuple(tensor.shape) for key, tensor in fitted.items()}
        raise InputError(
            f'The checkpoint does not match workload "{workload.name}":\n  ' + "\n  ".join(problems) + "\n",
            hint=domain.fit_hint(shapes, workload, dataset),
        )
    return fitted, tuple(notes)


def _prefix_of_wrappers(state: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> str:
    """Return the prefix that a wrapper, such as a LightningModule, added to every key, or ``""`` if there is none."""
    if state.keys() & model.keys():
        return ""
    *levels, _ = next(iter(state), "").split(".")
    for count in range(1, min(len(levels), _MOST_WRAPPERS) + 1):
        prefix = ".".join(levels[:count]) + "."
        if all(key.startswith(prefix) for key in state) and any(key.removeprefix(prefix) in model for key in state):
            return prefix
    return ""


def _ties(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield each pair of a tied parameter's names in both orders, because ``safetensors`` stores only one name."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        yield from permutations(tied, 2)


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines; if lines are omitted, append a line with the number of omitted lines."""
    rest = len(lines) - _MOST_SHOWN
    return [line[:_LONGEST_KEY] for line in lines[:_MOST_SHOWN]] + [f"and {rest} more"] * (rest > 0)


def _problems(state: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield lines about mismatched keys, grouped by the kind of mismatch, with at most ten lines per group."""
    groups = {
        "missing": [f"{key[:_LONGEST_KEY]} {_form(model[key])}" for key in sorted(model.keys() - state.keys())],
        "unexpected": [f"{key[:_LONGEST_KEY]} {_form(state[key])}" for key in sorted(state.keys() - model.keys())],
        "of another shape or type": [
            f"{key[:_LONGEST_KEY]}: the checkpoint has {_form(state[key])}, the workload {_form(model[key])}"
            for key in sorted(model.keys() & state.keys())
            if _form(state[key]) != _form(model[key])
        ],
    }
    for difference, lines in groups.items():
        if lines:
            yield f"{len(lines)} {difference}:"
            yield from (f"  {line}" for line in shortened(lines))


def _form(tensor: Tensor) -> str:
    """Return a tensor's shape, followed by its type if the type is not converted to float32."""
    return f"{list(tensor.shape)}{'' if tensor.dtype in _FLOATS else f' of {_name(tensor.dtype)}'}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Obtain, check and store a workload's float weights, which may be trained, downloaded or random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import permutations

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from storage.artifacts import artifact_digest
from storage.digest import digest_of
from storage.errors import InputError, shown
from tasks.data.outputs import training_device
from tasks.data.samples import shortened
from tasks.data.tensor_files import save_tensors
from tasks.data.weights import WEIGHTS_FILE, StateDict, build_blank, fetch_weights, read_state
from tasks.domains import domain_named
from tasks.environment.sources import code_digest, model_digest
from tasks.values.job import Workspace
from tasks.values.refs import CheckpointRef, DatasetRef
from tasks.workload import Workload
from tasks.workload.base import FetchedCheckpoint, SeededCheckpoint

KIND = "checkpoint"
_INNER = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_MOST_WRAPPERS = 3  # DataParallel, torch.compile and LightningModule, for example, each add a prefix to all keys
# Data types that store weights without a scale; other types, such as float8, need a separate scale.
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def obtain(workload: Workload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
    """Return the workload's float weights; obtain missing weights as ``checkpoint.kind`` specifies."""
    domain = domain_named(workload.domain)
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
    with fetch_weights(settings, workspace) as source:
        made_from = {
            "sha256": source.sha256,
            "model": workload.model.model_dump(mode="json"),
            "code": code_digest(__name__),
            "leave_out": settings.leave_out,
        }

        def read() -> StateDict:
            return read_state(source.path(), shown(settings.uri)).without(settings.leave_out)

        return find_or_make(workload, dataset, workspace, made_from, read)


def _digest_inputs(workload: Workload, dataset: DatasetRef, make: Callable[..., object]) -> dict[str, object]:
    """Return the values that determine the digest of trained or random weights."""
    build = domain_named(workload.domain).build
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
    build, store, notes = domain_named(workload.domain).build, workspace.store, tuple[str, ...]()
    expected = build_blank(lambda: build(workload.model, dataset)).state_dict()
    # The layout can change without the code that builds the model.
    layout = {key: [*tensor.shape, str(tensor.dtype)] for key, tensor in expected.items()}
    made_from = {**made_from, "layout": digest_of(layout)}
    digest = artifact_digest(KIND, made_from)
    if store.find(KIND, digest) is None:
        try:
            tensors, notes = load_into(make(), lambda: build(workload.model, dataset))
        except _MismatchError as error:
            lines = "\n  ".join(shortened(str(error).splitlines()))
            raise InputError(
                f'The checkpoint does not match workload "{workload.name}":\n  {lines}\n',
                hint="Set [model] to the model that the checkpoint was created for, or use another checkpoint.",
            ) from error
        # Copy weights only after they match, because others can declare tensors of any size.
        state = {
            name: tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
            for name, tensor in tensors.items()
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
    count = sum(tensor.numel() for tensor in expected.values())
    return CheckpointRef(kind=KIND, digest=digest, parameters=count, notes=notes)


class _MismatchError(Exception):
    """Weights that torch cannot load into a model."""


def load_into(state: Mapping[str, Tensor], make: Callable[[], nn.Module]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Let torch load a state dict into the model that `make` builds; return the model's tensors, and notes."""
    with torch.random.fork_rng(devices=[]):
        model = make()  # not a blank model, because a module's hook may compute with the model's values
    expected = model.state_dict()
    fitted, notes = StateDict(state), list(state.notes) if isinstance(state, StateDict) else []
    if metadata := getattr(state, "_metadata", None):
        fitted._metadata = dict(metadata)  # type: ignore[attr-defined]
    elif state.keys() == expected.keys():  # safetensors files lack versions; these keys have the current layout
        fitted._metadata = expected._metadata  # type: ignore[attr-defined]
    if prefix := _prefix_of_wrappers(fitted, expected):
        notes.append(f'removed the prefix "{prefix}" from every key')
        consume_prefix_in_state_dict_if_present(fitted, prefix)
    # A part of a model that was compiled or wrapped has the wrapper's name inside its keys.
    plain = {key: ".".join(part for part in key.split(".") if part not in _INNER) for key in fitted}
    if set(plain.values()) != set(plain) and set(plain.values()) <= set(expected):
        notes.append("removed the names of compiled or wrapped parts from keys")
        for key, new in plain.items():
            fitted[new] = fitted.pop(key)
    for key, tied in _ties(model):
        if key not in fitted and tied in fitted:
            fitted[key] = fitted[tied]
            notes.append(f"took {key} from {tied}, because the model ties them")
    scaled = [
        f"{key}: values of {_name(tensor.dtype)} need a scale"
        for key, tensor in fitted.items()
        if tensor.dtype not in _FLOATS and key in expected and expected[key].is_floating_point()
    ]
    if scaled:
        raise _MismatchError("\n".join(scaled))
    converted = {tensor.dtype for tensor in fitted.values() if tensor.is_floating_point()} - {torch.float32}
    notes += [f"converted {_name(dtype)} values to float32" for dtype in sorted(converted, key=str)]
    try:
        model.load_state_dict(fitted, assign=True)
    except Exception as error:  # hooks can raise any exception
        raise _MismatchError(f"{type(error).__name__}: {error}") from error
    return dict(model.state_dict()), tuple(notes)


def _prefix_of_wrappers(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """Return the prefix that a wrapper, such as a LightningModule, added to every key, or ``""`` if there is none."""
    levels = next(iter(state), "").split(".")[:-1]
    for count in range(min(len(levels), _MOST_WRAPPERS) + 1):
        prefix = "".join(f"{level}." for level in levels[:count])
        if all(key.startswith(prefix) for key in state) and any(key.removeprefix(prefix) in expected for key in state):
            return prefix
    return ""


def _ties(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield each pair of a tied parameter's names in both orders, because ``safetensors`` stores only one name."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        yield from permutations(tied, 2)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""Whether weights fit a model; what PyTorch's own loading forgives is forgiven here too, and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from storage.errors import InputError
from tasks.checkpoint.state_file import StateDict
from tasks.domains import DOMAINS
from tasks.refs import DatasetRef
from tasks.workload import Workload

_MOST_SHOWN, _LONGEST_KEY = 10, 200
_COUNT = "num_batches_tracked"
_COUNTS_SINCE = 2  # the version of normalization layers that brought the count of batches, PyTorch 0.4.1
# Types whose numbers are weights as they stand; those of float8, for instance, need a scale beside them.
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def fit(
    state: Mapping[str, Tensor], workload: Workload, dataset: DatasetRef
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The state dict as the workload's model has it, and what was done for that; no tensor is copied.

    Raises
    ------
    InputError
        Keys are missing, not expected, or of another shape or type than the model's.
    """
    domain = DOMAINS[workload.domain]
    model = build_blank(lambda: domain.build(workload.model, dataset))
    versions, notes = (state.versions, list(state.notes)) if isinstance(state, StateDict) else ({}, [])
    fitted = dict(state)
    if counts := [key for key in _counts_of_old_files(model, versions) if key not in fitted]:
        fitted |= {key: torch.tensor(0) for key in counts}
        notes.append(f"set {len(counts)} x {_COUNT}, which files from before PyTorch 0.4.1 lack, to 0")
    converted = {tensor.dtype for tensor in fitted.values() if tensor.is_floating_point()} - {torch.float32}
    notes += [f"converted {_name(dtype)} values to float32" for dtype in sorted(converted, key=str)]
    if problems := list(_problems(fitted, model.state_dict())):
        shapes = {key: tuple(tensor.shape) for key, tensor in state.items()}
        raise InputError(
            f'The checkpoint does not fit workload "{workload.name}":\n  ' + "\n  ".join(problems) + "\n",
            hint=domain.fit_hint(shapes, workload, dataset),
        )
    return fitted, tuple(notes)


def build_blank(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model of which only names, shapes and classes matter: without memory for its weights where possible.

    `make` builds it on torch's default device. The global generator is left as it was.
    """
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # noqa: BLE001 - whatever it is, a build on the CPU meets it again unless meta was the reason
        # A constructor may ask for a tensor's values: rates of stochastic depth by torch.linspace(…).tolist().
        with torch.random.fork_rng(devices=[]):
            return make()


def shortened(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    rest = len(lines) - _MOST_SHOWN
    return [line[:_LONGEST_KEY] for line in lines[:_MOST_SHOWN]] + [f"and {rest} more"] * (rest > 0)


def _counts_of_old_files(model: nn.Module, versions: Mapping[str, int]) -> Iterator[str]:
    """Keys that ``load_state_dict`` fills in where a file is older than they are: its rule, version below 2 or none."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats and versions.get(name, 0) < _COUNTS_SINCE:
            yield f"{name}.{_COUNT}" if name else _COUNT


def _problems(state: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> Iterator[str]:
    """Lines about keys that differ, in groups, each cut after ten."""
    groups = {
        "missing": [f"{key[:_LONGEST_KEY]} {_form(model[key])}" for key in sorted(model.keys() - state.keys())],
        "unexpected": [f"{key[:_LONGEST_KEY]} {_form(state[key])}" for key in sorted(state.keys() - model.keys())],
        "of another shape or type": [
            f"{key[:_LONGEST_KEY]}: the checkpoint has {_form(state[key])}, the workload {_form(model[key])}"
            for key in sorted(model.keys() & state.keys())
            if _form(state[key]) != _form(model[key])
        ],
    }
    for what, lines in groups.items():
        if lines:
            yield f"{len(lines)} {what}:"
            yield from (f"  {line}" for line in shortened(lines))


def _form(tensor: Tensor) -> str:
    """A tensor's shape, and its type unless weights of it are read as float32."""
    return f"{list(tensor.shape)}{'' if tensor.dtype in _FLOATS else f' of {_name(tensor.dtype)}'}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

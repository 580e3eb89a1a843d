"""Let torch load state dicts into models, and describe mismatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from storage.errors import first_line
from tasks.data.weights import StateDict, build_blank

_MOST_SHOWN, _LONGEST_KEY = 10, 200
_INNER = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_MOST_WRAPPERS = 3  # DataParallel, torch.compile and LightningModule, for example, each add a prefix to all keys
# Data types that store weights without a scale; other types, such as float8, need a separate scale.
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Loaded:
    """The tensors of a model that loaded a state dict, notes about changes, and lines about mismatches."""

    tensors: dict[str, Tensor]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def load_into(state: Mapping[str, Tensor], make: Callable[[], nn.Module]) -> Loaded:
    """Let torch load a state dict into the model that `make` builds, without copying data if possible.

    Before loading, remove a prefix that wrappers added to the keys. The modules themselves may convert older keys.
    Tensors on the meta device are only compared with the model, because hooks could compute with their values.
    """
    model = build_blank(make)
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
    converted = {tensor.dtype for tensor in fitted.values() if tensor.is_floating_point()} - {torch.float32}
    notes += [f"converted {_name(dtype)} values to float32" for dtype in sorted(converted, key=str)]
    if any(tensor.is_meta for tensor in fitted.values()):
        loaded, problems = dict(fitted), list(_problems(fitted, expected))
    else:
        loaded, problems = _load(fitted, model, make)
    return Loaded(loaded, tuple(notes), tuple(problems))


def _load(state: StateDict, model: nn.Module, make: Callable[[], nn.Module]) -> tuple[dict[str, Tensor], list[str]]:
    """Let torch load a state dict; return the model's tensors and lines about mismatches."""
    expected = model.state_dict()
    try:
        missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    except Exception:  # noqa: BLE001 - loading into a real model raises the error again, unless the blank model caused it
        try:
            with torch.random.fork_rng(devices=[]):
                model = make()
                missing, unexpected = model.load_state_dict(state, strict=False)
        except Exception as error:  # noqa: BLE001 - hooks can raise any exception
            problems = list(_problems(state, expected))
            return dict(state), problems or [f"torch cannot load it: {type(error).__name__}: {first_line(error)}"]
    loaded = dict(model.state_dict())
    for key in missing:
        loaded.pop(key, None)
    loaded |= {key: state[key] for key in unexpected if key in state}
    return loaded, list(_problems(loaded, expected))


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


def shortened(lines: Sequence[str]) -> list[str]:
    """Return the first lines; if lines are omitted, append a line with the number of omitted lines."""
    rest = len(lines) - _MOST_SHOWN
    return [line[:_LONGEST_KEY] for line in lines[:_MOST_SHOWN]] + [f"and {rest} more"] * (rest > 0)


def _problems(state: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield lines about mismatched keys, grouped by the kind of mismatch, with at most ten lines per group."""
    groups = {
        "missing": [f"{key[:_LONGEST_KEY]} {form(model[key])}" for key in sorted(model.keys() - state.keys())],
        "unexpected": [f"{key[:_LONGEST_KEY]} {form(state[key])}" for key in sorted(state.keys() - model.keys())],
        "of another shape or type": [
            f"{key[:_LONGEST_KEY]}: the checkpoint has {form(state[key])}, the workload {form(model[key])}"
            for key in sorted(model.keys() & state.keys())
            if form(state[key]) != form(model[key])
        ],
    }
    for difference, lines in groups.items():
        if lines:
            yield f"{len(lines)} {difference}:"
            yield from (f"  {line}" for line in shortened(lines))


def form(tensor: Tensor) -> str:
    """Return a tensor's shape, followed by its type if the type is not converted to float32."""
    return f"{list(tensor.shape)}{'' if tensor.dtype in _FLOATS else f' of {_name(tensor.dtype)}'}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

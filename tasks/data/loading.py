"""Let torch load state dicts into models, and describe mismatches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import first_line
from tasks.data.weights import StateDict, build_blank

_MOST_SHOWN, _LONGEST_KEY = 10, 200
_MOST_WRAPPERS = 3  # DataParallel, torch.compile and LightningModule, for example, each add a prefix to all keys
# Modules that wrap a part of a model, and add their own names to the part's keys.
_WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_COUNT = "num_batches_tracked"
# Data types that store weights without a scale; other types, such as float8, need a separate scale.
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Loaded:
    """The tensors of a model that loaded a state dict, and notes about changed keys.

    If ``problems`` is not empty, the state dict does not match the model, and ``tensors`` contains the state dict.
    """

    tensors: dict[str, Tensor]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """The missing and unexpected keys of a state dict that torch refused, and torch's message."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    message: str

    def further_lines(self, named: Sequence[str]) -> list[str]:
        """Return the message's lines about neither missing nor unexpected keys nor the `named` keys."""
        lines = [line.strip() for line in self.message.split("\n\t")[1:]]
        known = ("Missing key(s)", "Unexpected key(s)", *(f"size mismatch for {key}:" for key in named))
        known += tuple(f'While copying the parameter named "{key}"' for key in named)
        return [line for line in lines if not line.startswith(known)]


def load_into(state: Mapping[str, Tensor], make: Callable[[], nn.Module]) -> Loaded:
    """Let torch load a state dict into the model that `make` builds, without copying data if possible.

    Before loading, remove names that wrappers added to the keys. The modules themselves may convert older keys. Tensors
    on the meta device are only compared with the model, because hooks could compute with their values.
    """
    model = build_blank(make)
    expected = model.state_dict()
    versions, notes = (dict(state.versions), list(state.notes)) if isinstance(state, StateDict) else ({}, [])
    fitted = dict(state)
    if prefix := _prefix_of_wrappers(fitted, model):
        notes.append(f'removed the prefix "{prefix}" from every key')
        fitted = {key.removeprefix(prefix): tensor for key, tensor in fitted.items()}
        versions = {f"{name}.".removeprefix(prefix).rstrip("."): version for name, version in versions.items()}
    if wrappers := _wrappers_within(fitted, expected):
        notes.append(f"removed {', '.join(sorted(wrappers))} from keys")
        fitted = {_without(key, wrappers): tensor for key, tensor in fitted.items()}
        versions = {_without(name, wrappers): version for name, version in versions.items()}
    for key, tied in _ties(model):
        if key not in fitted and tied in fitted:
            fitted[key] = fitted[tied]
            notes.append(f"took {key} from {tied}, because the model ties them")
    converted = {tensor.dtype for tensor in fitted.values() if tensor.is_floating_point()} - {torch.float32}
    notes += [
        f"converted {str(dtype).removeprefix('torch.')} values to float32" for dtype in sorted(converted, key=str)
    ]
    if any(tensor.is_meta for tensor in fitted.values()):
        return Loaded(fitted, tuple(notes), tuple(_problems(fitted, expected)))
    loaded, problems = _loaded(fitted, versions, model, make)
    if problems:
        return Loaded(fitted, tuple(notes), tuple(problems))
    counts = [key for key in loaded if key not in fitted and key.endswith(_COUNT)]
    if counts:
        notes.append(f"set {len(counts)} x {_COUNT} to 0, because files from before PyTorch 0.4.1 lack them")
    if older := sorted(fitted.keys() - loaded.keys()):
        notes.append(f"the model's modules converted older keys: {', '.join(shortened(older))}")
    return Loaded(loaded, tuple(notes), ())


def _loaded(
    state: Mapping[str, Tensor], versions: Mapping[str, int], model: nn.Module, make: Callable[[], nn.Module]
) -> tuple[dict[str, Tensor], list[str]]:
    """Load a state dict with torch; return the model's state dict and lines about mismatches.

    `model` is blank. If a module cannot load into a blank model, for example because it computes with values, load into
    a model that `make` builds.
    """
    expected = model.state_dict()
    source = OrderedDict(state)
    if versions:
        source._metadata = {name: {"version": version} for name, version in versions.items()}  # type: ignore[attr-defined]
    elif state.keys() == expected.keys():  # safetensors files lack versions; these keys have the current layout
        source._metadata = getattr(expected, "_metadata", {})  # type: ignore[attr-defined]
    try:
        refusal = _load_strictly(model, source, assign=True)
    except Exception:  # noqa: BLE001 - loading into a real model raises the error again, unless the blank model caused it
        try:
            with torch.random.fork_rng(devices=[]):
                model = make()
                refusal = _load_strictly(model, source)
        except Exception as error:  # noqa: BLE001 - hooks can raise any exception
            return {}, [f"a module cannot load its tensors: {type(error).__name__}: {first_line(error)}"]
    if refusal is not None:
        return {}, list(_problems(state, expected, refusal))
    loaded = dict(model.state_dict())
    return loaded, list(_problems(loaded, expected))


def _load_strictly(model: nn.Module, state: Mapping[str, Tensor], **options: bool) -> Refusal | None:
    """Call ``load_state_dict``; return torch's reasons if torch refuses the state dict."""
    found: list[Any] = []
    register: Callable[..., Any] = model.register_load_state_dict_post_hook
    handle = register(lambda _, keys: found.append(keys))
    try:
        model.load_state_dict(state, **options)
    except RuntimeError as error:
        if not found:  # a module raised the error
            raise
        return Refusal(tuple(found[-1].missing_keys), tuple(found[-1].unexpected_keys), str(error))
    finally:
        handle.remove()
    return None


def _prefix_of_wrappers(state: Mapping[str, Tensor], model: nn.Module) -> str:
    """Return the prefix that a wrapper, such as a LightningModule, added to every key, or ``""`` if there is none."""
    expected, modules = model.state_dict(), dict(model.named_modules())
    if state.keys() & expected.keys():
        return ""
    *levels, _ = next(iter(state), "").split(".")
    for count in range(1, min(len(levels), _MOST_WRAPPERS) + 1):
        prefix = ".".join(levels[:count]) + "."
        keys = [key.removeprefix(prefix) for key in state if key.startswith(prefix)]
        # A module can convert older keys, so that only the module's name is known.
        is_known = any(key in expected or key.rpartition(".")[0] in modules.keys() - {""} for key in keys)
        if len(keys) == len(state) and is_known:
            return prefix
    return ""


def _wrappers_within(state: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> set[str]:
    """Return names of wrappers that occur in keys of the state dict, but not in keys of the model."""
    names, known = ({name for key in keys for name in key.split(".")} for keys in (state, model))
    wrappers = set(_WRAPPERS & (names - known))
    return wrappers if len({_without(key, wrappers) for key in state}) == len(state) else set()


def _without(key: str, names: set[str]) -> str:
    return ".".join(part for part in key.split(".") if part not in names)


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


def _problems(
    state: Mapping[str, Tensor], model: Mapping[str, Tensor], refusal: Refusal | None = None
) -> Iterator[str]:
    """Yield lines about mismatched keys, grouped by the kind of mismatch, with at most ten lines per group."""
    missing = sorted(model.keys() - state.keys() if refusal is None else set(refusal.missing) & model.keys())
    unexpected = sorted(state.keys() - model.keys() if refusal is None else refusal.unexpected)
    other = [key for key in sorted(model.keys() & state.keys()) if form(state[key]) != form(model[key])]
    groups = {
        "missing": [f"{key[:_LONGEST_KEY]} {form(model[key])}" for key in missing],
        "unexpected": [
            f"{key[:_LONGEST_KEY]} {form(state[key]) if key in state else ''}".rstrip() for key in unexpected
        ],
        "of another shape or type": [
            f"{key[:_LONGEST_KEY]}: the checkpoint has {form(state[key])}, the workload {form(model[key])}"
            for key in other
        ],
        "refused by torch": [] if refusal is None else refusal.further_lines(other),
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

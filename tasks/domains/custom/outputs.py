"""Models whose forward returns a dictionary, a dataclass or nested tuples: their tensors in one row, with names.

Runtimes hand over a tensor or a tuple of them. Such a model gets a class of its own whose forward returns the tuple;
its modules and their names stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn

from storage.errors import QuantizationError


def flat(model: nn.Module) -> nn.Module:
    """Let a model return its outputs in one row, in the order in which its forward returns them.

    The model itself is changed and returned. A tensor, and a tuple or list of tensors, are returned as before.
    Modules of torch's own stay, because quantization knows them by their class.
    """
    own = type(model)
    if own.__module__.partition(".")[0] == "torch":
        return model

    @functools.wraps(own.forward)
    def forward(self: nn.Module, *inputs: object, **named: object) -> object:
        result = own.forward(self, *inputs, **named)
        return tuple(leaf for _, leaf in _leaves(result)) if _is_nested(result) else result

    same = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    model.__class__ = type(own.__name__, (own,), {"forward": forward, "returns": own.forward, **same})
    return model


@torch.inference_mode()
def structure_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> object:
    """Return what the forward of a model that `flat` gave returns by itself."""
    returns = getattr(type(model), "returns", None)
    return returns(model, *inputs) if returns else model(*inputs)


def names(structure: object) -> tuple[str, ...]:
    """Name the outputs by their paths, such as ``logits`` or ``hidden.0``; without names by their numbers.

    Raises
    ------
    QuantizationError
        There is something in the structure that is no tensor.
    """
    if not _is_nested(structure):
        count = len(structure) if isinstance(structure, tuple | list) else 1
        return tuple(f"output-{index}" for index in range(count))
    return tuple(name for name, _ in _leaves(structure))


@contextmanager
def structured(model: nn.Module, structure: object) -> Iterator[None]:
    """Let a model that returns one row return a structure again, as the user's training expects it."""
    if not _is_nested(structure):
        yield
        return
    hook = model.register_forward_hook(lambda model, inputs, row: _filled(structure, iter(row)))
    try:
        yield
    finally:
        hook.remove()


def _is_nested(result: object) -> bool:
    if isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        return any(map(_is_container, result))
    return _is_container(result)


def _is_container(value: object) -> bool:
    return isinstance(value, tuple | list | Mapping) or (is_dataclass(value) and not isinstance(value, type))


def _parts(container: object) -> list[tuple[str, object]]:
    """A container's values by their names; what a dataclass leaves None is no output."""
    if is_dataclass(container):
        found = [(field.name, getattr(container, field.name)) for field in fields(container)]
        return [(name, value) for name, value in found if value is not None]
    if isinstance(container, Mapping):
        return [(str(key), value) for key, value in container.items() if value is not None]
    assert isinstance(container, tuple | list)
    keys = getattr(container, "_fields", map(str, range(len(container))))
    return list(zip(keys, container, strict=True))


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if _is_container(value):
        for name, part in _parts(value):
            yield from _leaves(part, f"{path}.{name}" if path else name)
    elif isinstance(value, Tensor | torch.fx.Proxy):
        yield path, value
    else:
        raise QuantizationError(
            f'The model returns "{path}", a {type(value).__name__}; only tensors can be saved.',
            hint="Let forward leave it out, or wrap the model in the factory.",
        )


def _filled(structure: object, row: Iterator[object]) -> object:
    """The structure with other leaves, which stand in one row."""
    if not _is_container(structure):
        return next(row)
    parts = {name: _filled(part, row) for name, part in _parts(structure)}
    kind = type(structure)
    if is_dataclass(structure):
        return kind(**parts)
    if isinstance(structure, Mapping):
        return kind((key, parts[str(key)]) for key in structure if str(key) in parts)  # type: ignore[call-arg]
    return kind(*parts.values()) if hasattr(structure, "_fields") else kind(parts.values())  # type: ignore[call-arg]

"""Flatten the outputs of models whose ``forward`` returns a dictionary, a dataclass or nested tuples.

Runtimes return a tensor or a tuple of tensors. For a model with nested outputs, `flat` replaces the model's class with
a subclass whose ``forward`` returns a tuple. The model's modules and their names stay the same.
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
    """Change a model in place so that ``forward`` returns a flat tuple of the outputs in the original order.

    A tensor, or a tuple or list of tensors, is returned unchanged. If torch defines the model's class, the model is not
    changed, because quantization recognizes torch's modules by class.
    """
    own = type(model)
    if own.__module__.partition(".")[0] == "torch":
        return model

    @functools.wraps(own.forward)
    def forward(self: nn.Module, *inputs: object, **keywords: object) -> object:
        result = own.forward(self, *inputs, **keywords)
        return tuple(leaf for _, leaf in _leaves(result)) if _is_nested(result) else result

    copied = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    model.__class__ = type(own.__name__, (own,), {"forward": forward, "returns": own.forward, **copied})
    return model


@torch.inference_mode()
def structure_of(model: nn.Module, inputs: tuple[Tensor, ...]) -> object:
    """Return the outputs of a flattened model in their original structure."""
    returns = getattr(type(model), "returns", None)
    return returns(model, *inputs) if returns else model(*inputs)


def names(structure: object) -> tuple[str, ...]:
    """Return the outputs' names: paths such as ``hidden.0``, or numbers such as ``output-0`` if the structure is flat.

    Raises
    ------
    QuantizationError
        The structure contains a value that is not a tensor.
    """
    if not _is_nested(structure):
        count = len(structure) if isinstance(structure, tuple | list) else 1
        return tuple(f"output-{index}" for index in range(count))
    return tuple(name for name, _ in _leaves(structure))


@contextmanager
def structured(model: nn.Module, structure: object) -> Iterator[None]:
    """Make a flattened model return the original structure, which the user's training code expects."""
    if not _is_nested(structure):
        yield
        return
    hook = model.register_forward_hook(lambda model, inputs, outputs: _restored(structure, iter(outputs)))
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
    """Return a container's values with their names, omitting ``None`` in dataclasses and mappings."""
    if is_dataclass(container):
        parts = [(field.name, getattr(container, field.name)) for field in fields(container)]
        return [(name, value) for name, value in parts if value is not None]
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
            f'The model\'s output "{path}" has the type {type(value).__name__}, but only tensors can be saved.',
            hint="Remove this output from forward, or wrap the model in the factory so that forward returns only "
            "tensors.",
        )


def _restored(structure: object, leaves: Iterator[object]) -> object:
    """Return a copy of the structure with `leaves` as its values."""
    if not _is_container(structure):
        return next(leaves)
    parts = {name: _restored(part, leaves) for name, part in _parts(structure)}
    kind = type(structure)
    if is_dataclass(structure):
        return kind(**parts)
    if isinstance(structure, Mapping):
        return kind((key, parts[str(key)]) for key in structure if str(key) in parts)  # type: ignore[call-arg]
    return kind(*parts.values()) if hasattr(structure, "_fields") else kind(parts.values())  # type: ignore[call-arg]

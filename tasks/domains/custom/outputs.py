"""Flatten the outputs of models whose ``forward`` returns a dictionary, a dataclass or nested tuples.

Runtimes return a tensor or a tuple of tensors. ``None`` in an output is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import SUPPORTED_NODES, tree_flatten_with_path, tree_map

from storage.errors import QuantizationError


def flat(model: nn.Module) -> nn.Module:
    """Change a model's class to a subclass whose ``forward`` returns a flat tuple of the outputs in the original order.

    If torch defines the model's class, the model is not changed, because quantization recognizes torch's modules by
    class.
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
    """Return the outputs' names: paths such as ``hidden.0``, or ``output-0`` and so on if the structure is flat."""
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

    def restore(_: nn.Module, inputs: object, outputs: tuple[Tensor, ...]) -> object:
        leaves = iter(outputs)
        return tree_map(lambda leaf: None if leaf is None else next(leaves), structure)

    hook = model.register_forward_hook(restore)
    try:
        yield
    finally:
        hook.remove()


def _is_nested(result: object) -> bool:
    if isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        return any(isinstance(part, tuple | list | Mapping) or is_dataclass(part) for part in result)
    return isinstance(result, tuple | Mapping) or is_dataclass(result)


def _leaves(value: object) -> list[tuple[str, object]]:
    """Return the tensors in a nested output, with their paths as names."""
    if is_dataclass(value) and type(value) not in SUPPORTED_NODES:
        torch.export.register_dataclass(type(value))
    leaves: list[tuple[str, object]] = []
    for path, leaf in tree_flatten_with_path(value)[0]:
        name = ".".join(str(key).strip(".[]'") for key in path)  # such as ``['hidden']``, ``[0]`` and ``.loss``
        if isinstance(leaf, Tensor | torch.fx.Proxy):
            leaves.append((name, leaf))
        elif leaf is not None:
            raise QuantizationError(
                f'The model\'s output "{name}" has the type {type(leaf).__name__}, but only tensors can be saved.',
                hint="Remove this output from forward, or wrap the model in the factory so that forward returns only "
                "tensors.",
            )
    return leaves

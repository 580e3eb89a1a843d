"""What a model's call returns, as the tensors that everything here works on."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from storage.errors import QuantizationError


class Call(Protocol):
    """A model that can be called with its inputs in order, whatever executes it."""

    def __call__(self, *inputs: Tensor) -> object:
        """Return a tensor, or a tuple or list of them."""


def tensors_of(result: object) -> tuple[Tensor, ...]:
    """A model's result as a tuple of tensors.

    Raises
    ------
    QuantizationError
        The model returns something else, for instance a dict.
    """
    items = tuple(result) if isinstance(result, tuple | list) else (result,)
    tensors = tuple(item for item in items if isinstance(item, Tensor))
    if len(tensors) == len(items) and items:
        return tensors
    others = [type(item).__name__ for item in items if not isinstance(item, Tensor)]
    held = f" that holds {f'a {others[0]}' if others else 'nothing'}" if isinstance(result, tuple | list) else ""
    raise QuantizationError(
        f"The model returns a {type(result).__name__}{held}; only a tensor, or a tuple of them, can be saved.",
        hint="Let forward return the logits, or a tuple with them first: wrap the model in the factory.",
    )

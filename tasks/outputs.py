"""What a model's call returns, as the tensors that everything here works on."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from storage.errors import QuantizationError


def returned_tensors(result: Any) -> tuple[Tensor, ...]:
    """A single tensor becomes a tuple of one, a list a tuple.

    Raises
    ------
    QuantizationError
        The model returns something else, for instance a dict.
    """
    items = tuple(result) if isinstance(result, tuple | list) else (result,)
    others = [type(item).__name__ for item in items if not isinstance(item, Tensor)]
    if others or not items:
        held = f" that holds {f'a {others[0]}' if others else 'nothing'}" if isinstance(result, tuple | list) else ""
        raise QuantizationError(
            f"The model returns a {type(result).__name__}{held}; only a tensor, or a tuple of them, can be saved.",
            hint="Let forward return the logits, or a tuple with them first: wrap the model in the factory.",
        )
    return items

"""Calls of models: the device and threads that they compute with, and the tensors that they return."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from storage.errors import NightquantError, QuantizationError
from tasks.libraries import in_one_line


def training_device() -> torch.device:
    """CUDA where there is one, the CPU otherwise; quantized models are always evaluated and timed on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Run the block with `count` intra-op threads, then restore the number there was."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


def outputs_of(model: Call, examples: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Call a model with its example inputs."""
    with torch.inference_mode():
        return tensors_of(model(*examples.values()))


def finite_outputs(model: Call, examples: Mapping[str, Tensor], recipe: str) -> tuple[Tensor, ...]:
    """Call what a recipe made with its example inputs.

    Raises
    ------
    QuantizationError
        It cannot be run, or computes NaN or infinities.
    """
    try:
        outputs = outputs_of(model, examples)
    except NightquantError:
        raise
    except Exception as error:
        raise QuantizationError(
            f'The recipe "{recipe}" gives a model that cannot be run: {in_one_line(error)}.',
            hint="Exclude the modules that the message is about.",
        ) from error
    for index, output in enumerate(outputs):
        if not bool(torch.isfinite(output).all()):
            raise QuantizationError(
                f'The recipe "{recipe}" gives a model whose output {index} holds NaN or infinities on real input.',
                hint="Exclude modules from the recipe, or check the checkpoint.",
            )
    return outputs


def distance(output: Tensor, reference: Tensor) -> float:
    """Largest absolute difference, as a share of the reference's range (of 1 where it is constant)."""
    spread = float(reference.double().max() - reference.double().min()) or 1.0
    return float((output.double() - reference.double()).abs().max()) / spread


def worst(*distances: float) -> float:
    """Return the largest distance; NaN if one is NaN, which `max` takes for small or large by its place."""
    return math.nan if any(map(math.isnan, distances)) else max(distances)

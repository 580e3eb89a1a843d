"""Call models: choose the device and the number of threads, and convert the outputs to tensors or dictionaries."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from storage.errors import NightquantError, QuantizationError
from tasks.environment.libraries import in_one_line, place_of


def training_device() -> torch.device:
    """Return CUDA if it is available, otherwise the CPU; quantized models are always evaluated and timed on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Run the block with `count` intra-op threads, then restore the previous number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Call(Protocol):
    """A model in any runtime, called with its inputs in order."""

    def __call__(self, *inputs: Tensor) -> object:
        """Return one tensor, or a tuple or list of tensors."""


def tensors_of(result: object) -> tuple[Tensor, ...]:
    """Return a model's result as a tuple of tensors; raise QuantizationError if it has another type."""
    items = tuple(result) if isinstance(result, tuple | list) else (result,)
    tensors = tuple(item for item in items if isinstance(item, Tensor))
    if len(tensors) == len(items) and items:
        return tensors
    other_types = [type(item).__name__ for item in items if not isinstance(item, Tensor)]
    within = f" with {', '.join(other_types) or 'nothing'} in it" if isinstance(result, tuple | list) else ""
    raise QuantizationError(
        f"The model returns a {type(result).__name__}{within}, but only a tensor or a tuple of tensors can be saved.",
        hint="In the factory, wrap the model so that forward returns the logits, or a tuple that begins with the "
        "logits.",
    )


def outputs_of(model: Call, examples: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Call a model with its example inputs."""
    with torch.inference_mode():
        return tensors_of(model(*examples.values()))


def finite_outputs(model: Call, examples: Mapping[str, Tensor], recipe: str) -> tuple[Tensor, ...]:
    """Call a recipe's model; raise QuantizationError if the call fails or an output is not finite."""
    try:
        outputs = outputs_of(model, examples)
    except NightquantError:
        raise
    except Exception as error:
        raise QuantizationError(
            f'The model from recipe "{recipe}" cannot run: {in_one_line(error)}{place_of(error)}.'
        ) from error
    for index, output in enumerate(outputs):
        if not bool(torch.isfinite(output).all()):
            raise QuantizationError(
                f'Output {index} of the model from recipe "{recipe}" contains NaN or infinities for real inputs.',
                hint="Check whether the float model's outputs are finite.",
            )
    return outputs


def distance(output: Tensor, reference: Tensor) -> float:
    """Return the largest absolute difference divided by the reference's range, or by 1 if the range is 0."""
    spread = float(reference.double().max() - reference.double().min()) or 1.0
    return float((output.double() - reference.double()).abs().max()) / spread


def worst(*distances: float) -> float:
    """Return the largest distance, or NaN if any distance is NaN."""
    return math.nan if any(map(math.isnan, distances)) else max(distances)


def flat(model: nn.Module) -> nn.Module:
    """Let a model whose ``forward`` returns a dictionary return a tuple, because runtimes return tuples of tensors."""
    own = type(model)
    if own.__module__.partition(".")[0] == "torch":  # quantization recognizes torch's modules by class
        return model

    @functools.wraps(own.forward)
    def forward(self: nn.Module, *inputs: object, **keywords: object) -> object:
        result = own.forward(self, *inputs, **keywords)
        return tuple(_named(result).values()) if isinstance(result, Mapping) else result

    copied = {name: getattr(own, name) for name in ("__module__", "__qualname__", "__doc__")}
    model.__class__ = type(own.__name__, (own,), {"forward": forward, **copied})
    return model


def output_names(result: object) -> tuple[str, ...]:
    """Return the outputs' names: the keys of a dictionary, or ``output-0`` and so on."""
    if isinstance(result, Mapping):
        return tuple(_named(result))
    return tuple(f"output-{index}" for index in range(len(result) if isinstance(result, tuple | list) else 1))


@contextmanager
def structured(model: nn.Module, structure: object) -> Iterator[None]:
    """Let a flattened model return a dictionary again, which the user's training code expects."""

    def restore(_: nn.Module, inputs: object, outputs: tuple[Tensor, ...]) -> object:
        named = dict(zip(output_names(structure), outputs, strict=False))
        return type(structure)(**named) if isinstance(structure, Mapping) else None

    hook = model.register_forward_hook(restore)
    try:
        yield
    finally:
        hook.remove()


def _named(result: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in result.items() if value is not None}

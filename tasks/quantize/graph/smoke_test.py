"""One call of a converted model, so that what cannot run is refused here, by name, and not in production."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from storage.errors import NightquantError, QuantizationError
from tasks.outputs import tensors_of
from tasks.quantize.graph.calibrate import refuse_non_finite

# What torch raises where it cannot prepare, observe or convert a layer.
_FAILURES = (RuntimeError, AttributeError, TypeError, AssertionError, ValueError)
_MODES = {"eager": "eager mode", "fx": "FX graph mode"}
_NO_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend")


@contextmanager
def refusing(step: str, model: str, flow: str) -> Iterator[None]:
    """Turn what torch raises in the block into a refusal.

    Parameters
    ----------
    step
        What is being done: "prepared", "calibrated" or "converted".
    model
        The type of the model.

    Raises
    ------
    QuantizationError
        Names the three, with the first line of what torch says.
    """
    try:
        yield
    except NightquantError:
        raise
    except _FAILURES as error:
        raise QuantizationError(
            f"{model} cannot be {step} in {_MODES[flow]}: {_what(error)}.",
            hint="Name the module that this is about in exclude"
            + (', or use flow = "fx".' if flow == "eager" else "."),
        ) from error


def try_out(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> None:
    """Call a converted model once on its example inputs.

    Raises
    ------
    QuantizationError
        An operation has no quantized kernel (named, with the module that called it), or the output is not finite.
    """
    with _called(model) as stack, torch.no_grad():
        try:
            output = model(*example_inputs.values())
        except _FAILURES as error:
            raise QuantizationError(
                f"The converted model cannot run: {_what(error)} in {_innermost(stack)}.",
                hint='Name that module in exclude, or use flow = "fx", which keeps such operations float.',
            ) from error
    refuse_non_finite(tensors_of(output), "its output after conversion")


@contextmanager
def _called(model: nn.Module) -> Iterator[list[str]]:
    """The paths of the modules being called, outermost first; where a call fails, the stack stays as it was."""
    stack: list[str] = []
    handles = []
    for path, module in model.named_modules():
        kind = type(module).__name__
        label = f"module {path} ({kind})" if path else kind
        handles.append(module.register_forward_pre_hook(lambda *_, label=label: stack.append(label)))
        handles.append(module.register_forward_hook(lambda *_: stack.pop() and None))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def _innermost(stack: list[str]) -> str:
    return stack[-1].replace("module module.", "module ") if stack else "the model"


def _what(error: Exception) -> str:
    text = str(error)
    missing = _NO_KERNEL.search(text)
    if missing:
        return f"{missing[1]} has no kernel for {missing[2]} tensors"
    return (text.splitlines() or [type(error).__name__])[0].rstrip(".")

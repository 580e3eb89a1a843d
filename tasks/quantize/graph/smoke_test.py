"""What cannot be prepared, converted or run is refused here, by name, and not in production."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import fx, nn

from storage.errors import NightquantError, QuantizationError, first_line
from tasks.quantize.calibration import refuse_non_finite
from tasks.quantize.graph.trace import failing_module, operation_name

_MODES = {"eager": "eager mode", "fx": "FX graph mode"}
_NO_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend")


@contextmanager
def refusing(step: str, model: str, graph: str) -> Iterator[None]:
    """Turn what torch raises in the block into a refusal to do a step: "prepared", "calibrated" or "converted".

    Raises
    ------
    QuantizationError
        Names the step, the model's type and the graph mode, with the first line of torch's message.
    """
    try:
        yield
    except NightquantError:
        raise
    except Exception as error:
        raise QuantizationError(
            f"{model} cannot be {step} in {_MODES[graph]}: {_what(error)}.",
            hint="Name the module that this is about in exclude"
            + (', or use graph = "fx".' if graph == "eager" else "."),
        ) from error


def try_out(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> None:
    """Call a converted model once on its example inputs.

    Raises
    ------
    QuantizationError
        An operation has no quantized kernel (named, with the module that called it), or the output is not finite.
    """
    # Called directly, a graph module prints a traceback.
    run = _Interpreter(model) if isinstance(model, fx.GraphModule) else None
    try:
        with torch.no_grad():
            output = (run.run if run else model)(*example_inputs.values())
    except Exception as error:
        hint = 'Name that module in exclude, or use graph = "fx", which keeps such operations float.'
        raise QuantizationError(
            f"The converted model cannot run: {_what(error)} in {run.place() if run else _failing_path(model, error)}.",
            hint="Name that module, or the one that holds it, in exclude." if run else hint,
        ) from error
    refuse_non_finite(output, "its output after conversion")


class _Interpreter(fx.Interpreter):
    """Runs a converted graph; says where it was when it failed."""

    last: fx.Node | None = None

    def run_node(self, n: fx.Node) -> object:
        self.last = n
        return super().run_node(n)

    def place(self) -> str:
        """Return the operation that ran last, and the module that it is or that it follows."""
        if self.last is None:
            return "its inputs"
        above = [self.last]
        for node in above:
            if node.op == "call_module":
                module = f"module {node.target} ({type(self.module.get_submodule(str(node.target))).__name__})"
                return module if node is self.last else f"{operation_name(self.last)} after {module}"
            above += [other for other in node.all_input_nodes if other not in above]
        return f"the operation {self.last.name}"


def _failing_path(model: nn.Module, error: Exception) -> str:
    failed = failing_module(error)
    for path, module in model.named_modules():
        if failed and module is failed[0] and path:
            # The borders hold the model itself as `module`.
            return f"module {path.removeprefix('module.')} ({type(module).__name__})"
    return type(model).__name__


def _what(error: Exception) -> str:
    missing = _NO_KERNEL.search(str(error))
    return f"{missing[1]} has no kernel for {missing[2]} tensors" if missing else first_line(error)

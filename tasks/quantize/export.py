"""Export a float or converted model with torch.export; axes whose lengths vary between calls stay dynamic."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature

import torch
from torch import Tensor, fx, nn
from torch._decomp import global_decomposition_table
from torch._ops import OpOverload
from torch.export import Dim, ExportedProgram
from torch.nn.modules.rnn import RNNBase

from storage.errors import QuantizationError, first_line


def export(model: nn.Module, examples: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]]) -> ExportedProgram:
    """Replace a model's LSTMs in place with `OneDnnLstm`, and export the model; the axes in `axes` stay dynamic."""
    replace_lstms(model)
    shapes = open_shapes(model, examples, axes)
    try:
        # Without `strict`, the quantizer mistakes a residual network's additions for partitions with several outputs.
        with torch.no_grad(), forgetting_exports():
            return torch.export.export(
                model, tuple(opened(examples, axes).values()), dynamic_shapes=shapes, strict=True
            )
    except Exception as error:
        unrolled = sorted({type(part).__name__ for part in model.modules() if isinstance(part, RNNBase)})
        reason = f"it would unroll its {', '.join(unrolled)} over time" if unrolled else first_line(error)
        raise QuantizationError(
            f"torch.export cannot export {type(model).__name__}: {reason}.",
            hint="Use the torchscript or onnxruntime runtime for this model.",
        ) from error


@contextmanager
def forgetting_exports() -> Iterator[None]:
    """Export as if it were the first time, and keep no model in memory.

    In torch 2.15, the cache of operators' kernels keeps decompositions of earlier ONNX exports, and a strict export
    leaves the model in a variable of torch's module.
    """
    for operator in global_decomposition_table["post_autograd"]:
        if isinstance(operator, OpOverload):
            operator._dispatch_cache.clear()
    try:
        yield
    finally:
        module = sys.modules.get("torch._dynamo.functional_export")  # importing it would take a second
        scope = vars(module) if module is not None else {}
        for name in [name for name in scope if name.startswith("__compiled_fn_")]:
            scope[name] = None  # torch may still delete the name


def opened(examples: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]]) -> dict[str, Tensor]:
    """Repeat each example along dynamic axes of length 1, because torch.export treats a length of 1 as fixed."""
    repeated = dict(examples)
    for name, named in axes.items():
        for axis in named:
            if repeated[name].shape[axis] == 1:
                repeated[name] = repeated[name].repeat_interleave(2, axis)
    return repeated


def open_shapes(
    model: nn.Module,
    examples: Mapping[str, Tensor],
    axes: Mapping[str, Mapping[int, str]],
    longest: int | None = None,
) -> tuple[object, ...]:
    """Return torch.export's ``dynamic_shapes`` argument; `longest` is the largest length of an axis, if any."""
    names = dict.fromkeys(axis for named in axes.values() for axis in named.values())
    legal = {name: name if name.isidentifier() else f"axis_{index}" for index, name in enumerate(names)}
    lengths = {name: Dim(word, min=1, max=longest) for name, word in legal.items()}
    shapes: tuple[object, ...] = tuple(
        {axis: lengths[length] for axis, length in axes.get(name, {}).items()} for name in examples
    )
    parameters = signature(model.forward).parameters.values()
    is_variadic = any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters)
    return (shapes,) if is_variadic else shapes


def path_of(node: fx.Node) -> str:
    """Return the path of the module that called an operation."""
    return str(list(node.meta["nn_module_stack"].values())[-1][0])


class OneDnnLstm(nn.Module):
    """An LSTM that calls oneDNN's kernel once for each layer and direction.

    torch.export keeps `OneDnnLstm`'s kernel calls for any number of time steps, but unrolls `nn.LSTM`. On a CPU with
    oneDNN, `nn.LSTM` also calls oneDNN's kernel, so `OneDnnLstm` returns the same numbers.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(
        self, inputs: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return outputs [T, B, D·H] ([B, T, D·H] if `batch_first`) and states h, c [D·L, B, H], as `nn.LSTM` does."""
        lstm = self.lstm
        steps = inputs.transpose(0, 1) if lstm.batch_first else inputs
        if state is None:
            zeros = steps.new_zeros(len(lstm.all_weights), steps.shape[1], lstm.hidden_size)
            state = (zeros, zeros)
        directions = 2 if lstm.bidirectional else 1
        h, c = [], []
        for layer in range(lstm.num_layers):
            outputs = []
            for index in range(layer * directions, (layer + 1) * directions):
                first, second = (part[index : index + 1].contiguous() for part in state)
                output, last_h, last_c = self._run(steps.contiguous(), index, first, second)
                outputs.append(output)
                h.append(last_h)
                c.append(last_c)
            steps = torch.cat(outputs, 2) if lstm.bidirectional else outputs[0]
        return steps.transpose(0, 1) if lstm.batch_first else steps, (torch.cat(h), torch.cat(c))

    def _run(self, steps: Tensor, index: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lstm = self.lstm
        weights: list[Tensor] = [*lstm.all_weights[index]]
        if not lstm.bias:
            weights += [steps.new_zeros(4 * lstm.hidden_size)] * 2
        backwards = lstm.bidirectional and index % 2 == 1
        # In ideep, mode 2 selects an LSTM. The last arguments select a single layer with biases, one direction,
        # time-first input and inference mode.
        output, last_h, last_c, _ = torch.ops.aten.mkldnn_rnn_layer(
            steps, *weights, h, c, backwards, [], 2, lstm.hidden_size, 1, True, False, False, False
        )
        return output, last_h, last_c


def replace_lstms(model: nn.Module) -> None:
    """Replace every LSTM without projections with a `OneDnnLstm`."""
    for path, module in list(model.named_modules()):
        if path and type(module) is nn.LSTM and not module.proj_size:
            model.set_submodule(path, OneDnnLstm(module))

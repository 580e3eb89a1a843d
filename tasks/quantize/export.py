"""Export of a float or converted model by torch.export, with the axes that vary from call to call left open."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.modules.rnn import RNNBase

from storage.errors import QuantizationError, first_line


def export(model: nn.Module, examples: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]]) -> ExportedProgram:
    """Export a model in evaluation mode, which may be changed: its LSTMs become `OneDnnLstm`.

    Parameters
    ----------
    examples
        Inputs by name, in calling order.
    axes
        The inputs' axes that may have any length from 1 on, as `ModelSource.axes` has them.

    Raises
    ------
    QuantizationError
        The model's control flow depends on values, or on the length of an open axis.
    """
    replace_lstms(model)
    shapes = open_shapes(model, examples, axes)
    try:
        # Not strict, the quantizer takes a residual network's additions for partitions with several outputs.
        with torch.no_grad():
            return torch.export.export(
                model, tuple(opened(examples, axes).values()), dynamic_shapes=shapes, strict=True
            )
    except Exception as error:
        unrolled = sorted({type(part).__name__ for part in model.modules() if isinstance(part, RNNBase)})
        why = f"it would unroll its {', '.join(unrolled)} over time" if unrolled else first_line(error)
        raise QuantizationError(
            f"torch.export cannot export {type(model).__name__}: {why}.",
            hint="Use torchscript or onnxruntime for it.",
        ) from error


def opened(examples: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]]) -> dict[str, Tensor]:
    """Repeat examples along open axes of length 1, which torch.export would otherwise take for closed ones."""
    found = dict(examples)
    for name, named in axes.items():
        for axis in named:
            if found[name].shape[axis] == 1:
                found[name] = found[name].repeat_interleave(2, axis)
    return found


def open_shapes(
    model: nn.Module, examples: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]]
) -> tuple[object, ...]:
    """torch.export's ``dynamic_shapes`` for a model that is called with the examples."""
    lengths = {axis: Dim(axis, min=1) for named in axes.values() for axis in named.values()}
    shapes: tuple[object, ...] = tuple(
        {axis: lengths[length] for axis, length in axes.get(name, {}).items()} for name in examples
    )
    takes_any = any(part.kind is Parameter.VAR_POSITIONAL for part in signature(model.forward).parameters.values())
    return (shapes,) if takes_any else shapes


class OneDnnLstm(nn.Module):
    """An LSTM as one call of oneDNN's kernel for each layer and direction.

    torch.export keeps these calls as they are, for any number of steps, where it unrolls `nn.LSTM` over time. They are
    the ones that `nn.LSTM` makes itself on a CPU with oneDNN, so that the numbers are the same.
    """

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(
        self, inputs: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As `nn.LSTM` for batches: outputs [T, B, D·H], or [B, T, D·H], and the state h, c, each [D·L, B, H]."""
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
        # 2 is ideep's number for an LSTM; then one layer, with bias, of one direction, time first, not for training.
        output, last_h, last_c, _ = torch.ops.aten.mkldnn_rnn_layer(
            steps, *weights, h, c, backwards, [], 2, lstm.hidden_size, 1, True, False, False, False
        )
        return output, last_h, last_c


def replace_lstms(model: nn.Module) -> None:
    """Put `OneDnnLstm` in the place of every LSTM that it can stand for: any but those with projections."""
    for path, module in list(model.named_modules()):
        if path and type(module) is nn.LSTM and not module.proj_size:
            model.set_submodule(path, OneDnnLstm(module))

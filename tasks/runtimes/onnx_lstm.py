"""How an LSTM is exported to ONNX: one operator a layer, with as little around it as can be.

torch's own exporter cuts, transposes and reshapes around each layer with operators that take longer than a single word
does in int8. Where a layer has one direction, dropping an axis is all that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxscript import opset20

# onnxscript's operators and values while it traces say less than they take: Any.
Value = Any
op: Any = opset20


def lstm(
    inputs: Value,
    state: Sequence[Value],
    weights: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, Value, Value]:
    """Translate ``aten::lstm.input``.

    Parameters
    ----------
    inputs
        [T, B, I], or [B, T, I] where `batch_first`.
    state
        h and c, each [L * D, B, H] for L layers and D directions.
    weights
        For each layer and direction: input and recurrent weights, then both biases where it `has_biases`.

    Returns
    -------
    Outputs [T, B, D * H] (or batch first), and h and c after the last step.
    """
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    if batch_first:
        inputs = op.Transpose(inputs, perm=[1, 0, 2])
    # Each layer's own rows of the state.
    before_h, before_c = (_rows(tensor, num_layers) for tensor in state)
    after_h, after_c = [], []
    for layer in range(num_layers):
        mine = [weights[each * (layer * directions + side) :][:each] for side in range(directions)]
        outputs, h, c = op.LSTM(
            inputs,
            _stacked([_reordered(side[0]) for side in mine]),
            _stacked([_reordered(side[1]) for side in mine]),
            _stacked([op.Concat(*map(_reordered, side[2:4]), axis=0) for side in mine]) if has_biases else None,
            None,  # all sequences have the same length
            before_h[layer],
            before_c[layer],
            direction="bidirectional" if bidirectional else "forward",
            hidden_size=_hidden_size(mine[0]),
        )
        if bidirectional:  # [T, D, B, H]
            inputs = op.Reshape(op.Transpose(outputs, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))
        else:
            inputs = op.Squeeze(outputs, op.Constant(value_ints=[1]))
        after_h.append(h)
        after_c.append(c)
    if batch_first:
        inputs = op.Transpose(inputs, perm=[1, 0, 2])
    return inputs, _joined(after_h), _joined(after_c)


def _rows(tensor: Value, layers: int) -> Sequence[Value]:
    if layers == 1:
        return [tensor]
    parts: Sequence[Value] = op.Split(tensor, num_outputs=layers, axis=0)
    return parts


def _reordered(gates: Value) -> Value:
    """From torch's order of the gates (input, forget, cell, output) to ONNX's (input, output, forget, cell).

    In slices, because the exporter computes nothing of several outputs ahead.
    """
    size, axis = int(gates.shape[0]) // 4, op.Constant(value_ints=[0])
    given, forget, cell, output = (
        op.Slice(gates, op.Constant(value_ints=[at * size]), op.Constant(value_ints=[(at + 1) * size]), axis)
        for at in range(4)
    )
    return op.Concat(given, output, forget, cell, axis=0)


def _stacked(sides: Sequence[Value]) -> Value:
    axis = op.Constant(value_ints=[0])
    stacked = [op.Unsqueeze(side, axis) for side in sides]
    return op.Concat(*stacked, axis=0) if len(stacked) > 1 else stacked[0]


def _joined(parts: Sequence[Value]) -> Value:
    return op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]


def _hidden_size(weights: Sequence[Value]) -> int:
    """The recurrent weights' width; they are [4 * H, H]."""
    return int(weights[1].shape[1])

"""Modules with int8 weights and a scale for each output channel, whose activations are quantized row by row.

Linear and LSTM call the operators of `tasks.quantize.native`. They hold their weights packed for the kernels; a state
dict has them as plain int8 matrices, and loading one packs them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.errors import QuantizationError
from tasks.job import Workspace
from tasks.quantize.base import Converted, Converter
from tasks.quantize.coverage import cover_some, why_float
from tasks.quantize.operators import find_or_compile, operators
from tasks.quantize.packing import (
    MOST_FEATURES,
    LstmLayer,
    QuantizedMatrix,
    pack_linear,
    pack_lstm,
    packed_linear_bytes,
    packed_lstm_bytes,
    quantize_rows,
    unpack_linear,
    unpack_lstm,
)
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec

_IN_FRONT = 48  # as in native/operators.cpp


class _Packed(nn.Module):
    """A module whose only tensor is `packed`, which is another thing in a state dict."""

    packed: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("packed", torch.zeros(size, dtype=torch.uint8), persistent=False)

    @abstractmethod
    def plain_state(self) -> dict[str, Tensor]:
        """Weights and scales by name, in no kernel's order."""

    @abstractmethod
    def pack(self, state: Mapping[str, Tensor]) -> Tensor:
        """Pack what `plain_state` gave."""

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination |= {prefix + name: tensor for name, tensor in self.plain_state().items()}

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: Mapping[str, object],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        like = self.plain_state()
        missing = [prefix + name for name in like if prefix + name not in state_dict]
        if missing:
            missing_keys += missing
            return
        for name, tensor in like.items():
            if state_dict[prefix + name].shape != tensor.shape:
                error_msgs.append(
                    f"{prefix}{name} is {list(state_dict[prefix + name].shape)}, not {list(tensor.shape)}"
                )
                return
        self.packed = self.pack({name: state_dict[prefix + name] for name in like})


def align_for_aot_inductor(model: nn.Module) -> None:
    """Put bytes in front of a model's packed weights, which lie at cache lines then where AOTInductor keeps them.

    The model can be called as before, but has no state dict any more.
    """
    for module in model.modules():
        if isinstance(module, _Packed):
            module.packed = torch.cat([module.packed.new_zeros(_IN_FRONT), module.packed])


class Int8Linear(_Packed):
    """A linear layer; state ``weight`` int8 [N, K], ``scale`` and ``bias`` float32 [N]."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(packed_linear_bytes(out_features, in_features))
        self.in_features, self.out_features = in_features, out_features
        self._operator = operators().linear.default

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Quantize a float layer's weight."""
        made = cls(linear.in_features, linear.out_features)
        # torch's stubs do not know that there may be none.
        given: Tensor | None = linear.bias
        bias = torch.zeros(linear.out_features) if given is None else given.detach().float()
        made.packed = pack_linear(quantize_rows(linear.weight), bias)
        return made

    def forward(self, inputs: Tensor) -> Tensor:
        """From float32 [..., K] to float32 [..., N]."""
        outputs: Tensor = self._operator(inputs, self.packed, self.out_features)
        return outputs

    def plain_state(self) -> dict[str, Tensor]:
        """Weights and scales by name."""
        matrix, bias = unpack_linear(self.packed, self.out_features, self.in_features)
        return {"weight": matrix.values, "scale": matrix.scale, "bias": bias}

    def pack(self, state: Mapping[str, Tensor]) -> Tensor:
        """Pack the weight."""
        return pack_linear(QuantizedMatrix(state["weight"], state["scale"]), state["bias"])

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.in_features}, {self.out_features}"


class Int8Lstm(_Packed):
    """An LSTM of one direction; called as `torch.nn.LSTM` is, but for packed sequences.

    State, for each layer ``n``: ``weight_ih_ln`` int8 [4H, I] and ``weight_hh_ln`` int8 [4H, H] in torch's order of
    gates, their ``scale_ih_ln`` and ``scale_hh_ln`` float32 [4H], and ``bias_ln`` float32 [4H], the sum of both biases.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, *, batch_first: bool = False) -> None:
        super().__init__(packed_lstm_bytes(num_layers, input_size, hidden_size))
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first = batch_first
        self._operator = operators().lstm.default

    @classmethod
    def of(cls, lstm: nn.LSTM) -> Self:
        """Quantize a float LSTM's weights; it has one direction and no projection."""
        made = cls(lstm.input_size, lstm.hidden_size, lstm.num_layers, batch_first=lstm.batch_first)
        made.packed = pack_lstm([_layer(lstm, number) for number in range(lstm.num_layers)])
        return made

    def forward(self, inputs: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """From float32 [T, B, I] ([B, T, I] with `batch_first`, or [T, I]) and h, c [L, B, H] to outputs and state.

        Raises
        ------
        QuantizationError
            The inputs are a packed sequence.
        """
        if not isinstance(inputs, Tensor):
            raise QuantizationError("An int8 LSTM takes no packed sequences.", hint="Exclude it from the recipe.")
        batched = inputs.dim() == 3
        if not batched:
            inputs = inputs.unsqueeze(1)
            hx = hx and (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        elif self.batch_first:
            inputs = inputs.transpose(0, 1)
        if hx is None:
            zeros = inputs.new_zeros(self.num_layers, inputs.shape[1], self.hidden_size)
            hx = zeros, zeros
        outputs, h, c = self._operator(inputs, *hx, self.packed)
        if not batched:
            return outputs.squeeze(1), (h.squeeze(1), c.squeeze(1))
        return outputs.transpose(0, 1) if self.batch_first else outputs, (h, c)

    def plain_state(self) -> dict[str, Tensor]:
        """Weights and scales by name."""
        state: dict[str, Tensor] = {}
        layers = unpack_lstm(self.packed, self.num_layers, self.input_size, self.hidden_size)
        for number, layer in enumerate(layers):
            state |= {f"weight_ih_l{number}": layer.input.values, f"weight_hh_l{number}": layer.recurrent.values}
            state |= {f"scale_ih_l{number}": layer.input.scale, f"scale_hh_l{number}": layer.recurrent.scale}
            state[f"bias_l{number}"] = layer.bias
        return state

    def pack(self, state: Mapping[str, Tensor]) -> Tensor:
        """Pack all layers."""
        return pack_lstm(
            [
                LstmLayer(
                    QuantizedMatrix(state[f"weight_ih_l{number}"], state[f"scale_ih_l{number}"]),
                    QuantizedMatrix(state[f"weight_hh_l{number}"], state[f"scale_hh_l{number}"]),
                    state[f"bias_l{number}"],
                )
                for number in range(self.num_layers)
            ]
        )

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}"


class Int8Embedding(nn.Module):
    """An embedding whose rows are int8 [V, D] with a scale each, float32 [V, 1]; plain torch."""

    weight: Tensor
    scale: Tensor

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(num_embeddings, embedding_dim, dtype=torch.int8))
        self.register_buffer("scale", torch.zeros(num_embeddings, 1))

    @classmethod
    def of(cls, embedding: nn.Embedding) -> Self:
        """Quantize a float embedding's rows."""
        made, rows = cls(embedding.num_embeddings, embedding.embedding_dim), quantize_rows(embedding.weight)
        made.weight, made.scale = rows.values, rows.scale.unsqueeze(1)
        return made

    def forward(self, indices: Tensor) -> Tensor:
        """Look up rows: integers of any shape to float32 with one more axis."""
        return functional.embedding(indices, self.weight) * functional.embedding(indices, self.scale)


def _layer(lstm: nn.LSTM, number: int) -> LstmLayer:
    def tensor(name: str) -> Tensor:
        found: Tensor = getattr(lstm, f"{name}_l{number}")
        return found.detach().float()

    bias = tensor("bias_ih") + tensor("bias_hh") if lstm.bias else torch.zeros(4 * lstm.hidden_size)
    return LstmLayer(quantize_rows(tensor("weight_ih")), quantize_rows(tensor("weight_hh")), bias)


class PerRowConverter(Converter):
    """Replaces every module whose type a spec names and that it does not exclude."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model.

        Raises
        ------
        QuantizationError
            The spec quantizes nothing, excludes a module that is not there, or its operators are not loaded.
        """
        coverage = cover_some(model, spec, _why_float(model, spec))
        return Converted(self.skeleton(model, spec, "", source.example_inputs), "", coverage)

    def skeleton(self, model: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Convert whatever weights the model has: this needs no data."""
        for path, reason in _why_float(model, spec).items():
            match model.get_submodule(path):
                case _ if reason:
                    continue
                case nn.Linear() as linear:
                    model.set_submodule(path, Int8Linear.of(linear))
                case nn.LSTM() as lstm:
                    model.set_submodule(path, Int8Lstm.of(lstm))
                case nn.Embedding() as embedding:
                    model.set_submodule(path, Int8Embedding.of(embedding))
        return model.eval()

    def library(self, workspace: Workspace) -> Path:
        """Find or compile the operators."""
        return find_or_compile(workspace)


def _why_float(model: nn.Module, spec: Spec) -> dict[str, str]:
    """Say why each module stays float, "" for those to quantize."""

    def lack(module: nn.Module) -> str:
        match module:
            case nn.LSTM(bidirectional=True):
                return "there is no kernel for two directions"
            case nn.LSTM() if module.proj_size:
                return "there is no kernel for projections"
            case nn.Embedding() if module.max_norm is not None:
                return "max_norm changes weights at every call"
        widths = [getattr(module, name, 0) for name in ("in_features", "input_size", "hidden_size")]
        if max(widths) > MOST_FEATURES:
            return f"sums over more than {MOST_FEATURES:,} features do not fit into 32 bits"
        return ""

    return why_float(model, spec, lack, "may compute something else")

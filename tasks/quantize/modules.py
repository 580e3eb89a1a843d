"""Modules of converted models that torch does not make: embeddings with 4-bit or 8-bit rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.ao.nn.quantized import Embedding
from torch.ao.quantization import PerChannelMinMaxObserver

_ops = torch.ops.quantized


class FourBitEmbedding(nn.Module):
    """An embedding whose rows hold two values a byte, then float16 scale and offset.

    ``quantize_dynamic`` cannot make one: it quantizes the weight to 4 bits, but puts it into a module for 8 bits, which
    reads rows of the wrong width. torch's module for 4 bits (``quint4x2``) does compute, but TorchScript writes its
    weight in a form that it cannot read again. The operator of embedding bags does both, on a plain tensor of bytes:
    here every bag holds one index.
    """

    packed: Tensor

    def __init__(self, packed: Tensor) -> None:
        super().__init__()
        self.register_buffer("packed", packed)

    def forward(self, indices: Tensor) -> Tensor:
        """Look up rows: int64 of any shape to float32 with one more axis."""
        rows: Tensor = _ops.embedding_bag_4bit_rowwise_offsets(self.packed, indices.reshape(-1, 1))
        return rows.reshape(indices.shape + rows.shape[1:])


def quantize_embeddings(model: nn.Module, names: Iterable[str], bits: int | None) -> None:
    """Replace the named embeddings by ones with 8-bit or 4-bit rows, each with a scale and an offset of its own.

    4-bit rows need an even width: the last of an odd number of values would share its byte with the next row.
    """
    for name in names:
        embedding = model.get_submodule(name)
        assert isinstance(embedding, nn.Embedding)
        weight = embedding.weight.detach().float()
        packed = FourBitEmbedding(_ops.embedding_bag_4bit_prepack(weight)) if bits == 4 else _eight_bits(weight)
        model.set_submodule(name, packed)


def _eight_bits(weight: Tensor) -> nn.Module:
    observer = PerChannelMinMaxObserver(dtype=torch.quint8, qscheme=torch.per_channel_affine_float_qparams, ch_axis=0)
    observer(weight)
    scales, zero_points = observer.calculate_qparams()
    quantized = torch.quantize_per_channel(weight, scales, zero_points, 0, torch.quint8)
    return Embedding(weight.shape[0], weight.shape[1], _weight=quantized)

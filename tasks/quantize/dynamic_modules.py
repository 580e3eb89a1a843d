"""Apply torch's dynamic quantization, and quantize embeddings to 4 or 8 bits per value."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.nn.quantized import Embedding
from torch.ao.quantization import PerChannelMinMaxObserver

from tasks.quantize.coverage import ModuleConverter
from tasks.quantize.source import refusing
from tasks.quantize.spec import Spec

_ops = torch.ops.quantized


class FourBitEmbedding(nn.Module):
    """An embedding whose rows store two values per byte, followed by a scale and an offset in float16.

    It calls the embedding-bag operator with one index per bag, because TorchScript cannot reload the weight of
    PyTorch's 4-bit module (``quint4x2``).
    """

    packed: Tensor

    def __init__(self, packed: Tensor) -> None:
        super().__init__()
        self.register_buffer("packed", packed)

    def forward(self, indices: Tensor) -> Tensor:
        """Return float32 rows [..., D] for int64 indices [...]."""
        rows: Tensor = _ops.embedding_bag_4bit_rowwise_offsets(self.packed, indices.reshape(-1, 1))
        return rows.reshape(indices.shape + rows.shape[1:])


class DynamicConverter(ModuleConverter):
    """A converter that uses torch's dynamic quantization."""

    subclass = "torch does not convert"

    def lack(self, module: nn.Module, spec: Spec) -> str:
        """Return the reason that a recurrent layer or an embedding has no kernel, or "" if a kernel exists."""
        if isinstance(module, nn.RNNBase) and (not module.bias or module.proj_size):
            return "torch has no dynamic kernel for recurrent layers without bias or with projections"
        if isinstance(module, nn.Embedding) and _has_four_bits(spec) and module.embedding_dim % 2:
            # Adjacent rows with an odd number of 4-bit values would share a byte.
            return "4-bit rows need an even number of values"
        return ""

    def replace(self, model: nn.Module, paths: Collection[str], spec: Spec) -> nn.Module:
        """Quantize embeddings, and let torch quantize the other modules."""
        if "float16" in spec.weights:
            dtype, qconfig = torch.float16, quantization.float16_dynamic_qconfig
        elif any(layer.granularity == "channel" for kind, layer in spec.layers.items() if kind != "Embedding"):
            dtype, qconfig = torch.qint8, quantization.per_channel_dynamic_qconfig
        else:
            dtype, qconfig = torch.qint8, quantization.default_dynamic_qconfig
        qconfigs = {}
        refused = f'The "{spec.engine}" engine does not support the "{spec.name}" recipe'
        with refusing(refused, 'Set engine = "x86".'):
            for path in paths:
                module = model.get_submodule(path)
                if isinstance(module, nn.Embedding):
                    model.set_submodule(path, _quantized(module, spec))
                else:
                    qconfigs[path] = qconfig
            quantization.quantize_dynamic(model, qconfigs, dtype=dtype, inplace=True)  # type: ignore[no-untyped-call]
        return model


def _has_four_bits(spec: Spec) -> bool:
    return spec.layers["Embedding"].weights == "int4"


def _quantized(embedding: nn.Embedding, spec: Spec) -> nn.Module:
    """Quantize an embedding to 8 or 4 bits per value, with a scale and an offset per row."""
    weight = embedding.weight.detach().float()
    if _has_four_bits(spec):
        return FourBitEmbedding(_ops.embedding_bag_4bit_prepack(weight))
    observer = PerChannelMinMaxObserver(dtype=torch.quint8, qscheme=torch.per_channel_affine_float_qparams, ch_axis=0)
    observer(weight)
    scales, zero_points = observer.calculate_qparams()
    quantized = torch.quantize_per_channel(weight, scales, zero_points, 0, torch.quint8)
    return Embedding(weight.shape[0], weight.shape[1], _weight=quantized)

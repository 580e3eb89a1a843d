"""Files of TorchScript that torch writes and cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.runtimes.torchscript_files import read_script, write_script


class Doubled(nn.Module):
    """Adds a quantized tensor to itself; its scale is the one number in the graph."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, values: Tensor) -> Tensor:
        quantized = torch.quantize_per_tensor(values, self.scale, 0, torch.quint8)
        return torch.ops.quantized.add(quantized, quantized, self.scale, 0).dequantize()


@pytest.mark.parametrize("scale", [0.5, 1e9])
def test_a_file_with_a_usual_scale_is_read(scale: float, tmp_path: Path) -> None:
    values = torch.tensor([0.0, 1.0, 2.0]) * scale
    write_script(Doubled(scale), {"values": values}, tmp_path / "model.ts", exact=True)
    assert torch.equal(read_script(tmp_path / "model.ts")(values), 2 * values)


def test_a_file_with_a_scale_without_a_decimal_point_is_refused_with_the_reason(tmp_path: Path) -> None:
    values = torch.tensor([0.0, 1.0, 2.0]) * 13463133184.0
    write_script(Doubled(13463133184.0), {"values": values}, tmp_path / "model.ts", exact=True)
    with pytest.raises(QuantizationError, match="torch cannot read the TorchScript file that it wrote"):
        read_script(tmp_path / "model.ts")

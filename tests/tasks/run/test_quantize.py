"""One model, quantized from Python as a night would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from storage.errors import ConfigurationError
from tasks.run.quantize import quantize


class Words(nn.Module):
    """An LSTM with its state, as the tutorial's."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.decoder = nn.LSTM(8, 16), nn.Linear(16, 4)

    def forward(self, words: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, (h, c) = self.lstm(words, (h, c))
        return self.decoder(out), h, c


def images() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    return nn.Sequential(*layers), torch.randn(4, 3, 8, 8)


def test_a_static_module_is_int8_close_to_the_float_model_which_stays_as_it_was() -> None:
    model, rows = images()
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    int8: Any = quantize(model, {"method": "static"}, (rows,), calibration=[(torch.randn(40, 3, 8, 8),)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    with torch.inference_mode():
        expected, found = model.eval()(rows), int8(rows)
    assert found.shape == expected.shape
    assert 0 < float((found - expected).abs().max()) < 0.1 * float(expected.max() - expected.min())


def test_a_dynamic_recipe_takes_a_recurrent_model_and_its_states() -> None:
    state = torch.zeros(1, 1, 16)
    int8: Any = quantize(Words(), {"method": "dynamic"}, (torch.randn(5, 1, 8), state, state))
    assert [type(layer).__module__.split(".")[3] for layer in (int8.lstm, int8.decoder)] == ["quantized", "quantized"]


@pytest.mark.slow
def test_a_runtime_that_exports_writes_its_files(tmp_path: Path) -> None:
    model, rows = images()
    folder = quantize(model, {"method": "static"}, (rows,), runtime="onnxruntime", target=tmp_path / "int8")
    assert folder == tmp_path / "int8"
    assert (tmp_path / "int8" / "model.onnx").stat().st_size < 10_000


@pytest.mark.parametrize(
    ("recipe", "runtime"),
    [({"method": "qat"}, "eager"), ({"method": "none"}, "onnxruntime")],
    ids=["trains", "no target"],
)
def test_unsupported_requests_are_refused_with_the_reason(recipe: dict[str, object], runtime: str) -> None:
    model, rows = images()
    with pytest.raises(ConfigurationError, match="pass target="):
        quantize(model, recipe, (rows,), runtime=runtime)

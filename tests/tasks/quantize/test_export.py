from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.quantize.coverage import ChannelsLast
from tasks.quantize.export import OneDnnLstm, export
from tests.tasks.quantize import networks

AXES = {"steps": {0: "time", 1: "batch"}}


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, steps: Tensor) -> Tensor:
        outputs, _ = self.layer(steps)
        return outputs


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"bias": False},
        {"batch_first": True},
        {"num_layers": 3},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 2, "bidirectional": True, "bias": False, "batch_first": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("given", [False, True], ids=["from-zero", "from-a-state"])
@pytest.mark.slow
def test_the_replacement_lstm_has_the_same_outputs_bit_for_bit(keys: dict[str, bool | int], given: bool) -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(5, 7, **keys).eval()
    inputs = torch.randn(4, 3, 5)
    batch = 4 if lstm.batch_first else 3
    states = torch.randn(2, lstm.num_layers * (2 if lstm.bidirectional else 1), batch, 7)
    state = (states[0], states[1]) if given else None
    with torch.inference_mode():
        outputs, (h, c) = OneDnnLstm(lstm)(inputs, state)
        expected, (expected_h, expected_c) = lstm(inputs, state)
    assert torch.equal(outputs, expected)
    assert torch.equal(h, expected_h)
    assert torch.equal(c, expected_c)


def test_open_axes_take_any_length_whatever_the_examples_have() -> None:
    torch.manual_seed(0)
    model = Recurrent(nn.LSTM(4, 6)).eval()
    # 2 is also the number of steps and of columns that a length of 1 is repeated to.
    exported = export(Recurrent(model.layer), {"steps": torch.randn(1, 2, 4)}, AXES).module()
    for time, batch in ((1, 1), (2, 2), (7, 1), (3, 5)):
        steps = torch.randn(time, batch, 4)
        with torch.inference_mode():
            assert torch.allclose(exported(steps), model(steps), atol=1e-6)


@pytest.mark.slow
def test_a_wrapper_that_takes_inputs_in_any_number_is_exported_too() -> None:
    torch.manual_seed(0)
    model = ChannelsLast(networks.plain())
    exported = export(model, {"images": torch.randn(1, 3, 16, 16)}, {"images": {0: "batch"}}).module()
    images = torch.randn(3, 3, 16, 16)
    with torch.inference_mode():
        assert torch.allclose(exported(images), model(images), atol=1e-5)


def test_a_layer_that_would_be_unrolled_is_refused_by_name() -> None:
    with pytest.raises(
        QuantizationError, match=r"Recurrent: it would unroll its GRU over time\. Use the torchscript or"
    ):
        export(Recurrent(nn.GRU(4, 6)).eval(), {"steps": torch.randn(3, 2, 4)}, AXES)


@pytest.mark.slow
def test_a_model_with_two_axes_of_any_names_is_exported_with_both_free() -> None:
    model, images = nn.Conv2d(3, 4, 1).eval(), {"images": torch.randn(1, 3, 8, 9)}
    exported = export(model, images, {"images": {0: "batch", 2: "img-h", 3: "img-h 2"}}).module()
    other = torch.randn(3, 3, 12, 20)
    torch.testing.assert_close(exported(other), model(other))

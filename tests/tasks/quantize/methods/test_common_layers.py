"""Static quantization of layers that torch's own conversion trips over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.ao.quantization import DeQuantStub, QuantStub, fuse_modules

from storage.errors import QuantizationError
from tasks.quantize.base import Context, Converted
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.methods.static import Static, StaticRecipe, finished, observed
from tasks.quantize.state import flatten_state, restore_state, versions_of
from tests.tasks.quantize import networks

Contexts = Callable[..., Context]


def recipe(**changes: object) -> StaticRecipe:
    return StaticRecipe(
        name="static", method="static", **{"calibration_batches": 2, "calibration_batch_size": 8, **changes}
    )


def sqnr_db(expected: torch.Tensor, actual: torch.Tensor) -> float:
    return float(10 * torch.log10(expected.square().sum() / (expected - actual).square().sum()).detach())


def around(layer: nn.Module) -> nn.Module:
    """A classifier with the layer, which takes and gives eight channels, inside."""
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return networks.one_path(nn.Conv2d(3, 8, 3, stride=2), layer, *head)


def saved_and_opened(make: Callable[[], nn.Module], converted: Converted, context: Context) -> nn.Module:
    """What the state dict alone gives back, as it goes through the store."""
    state = converted.model.state_dict()
    skeleton = Static().skeleton(make(), recipe(), converted.flow, context.example_inputs)
    skeleton.load_state_dict(restore_state(*flatten_state(state), versions_of(state)))
    return skeleton


class OlderProtocol(nn.Module):
    """Stubs, and a `fuse_model` that does not take `is_qat`."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.dequant(self.relu(self.bn(self.conv(self.quant(images))))).mean((2, 3))

    def fuse_model(self) -> None:
        """By modules' names, as tutorials show it."""
        fuse_modules(self, [["conv", "bn", "relu"]], inplace=True)


class TwiceWithRelu(nn.Module):
    """One convolution called twice, fused once: eager mode converts it into something that does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.body = nn.Sequential(self.conv, nn.ReLU(), self.conv, nn.ReLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images).mean((2, 3))


def upsampling() -> nn.Module:
    """Eager mode takes every Upsample, but torch has no int8 kernel for this one's mode."""
    return around(nn.Upsample(scale_factor=2, mode="bicubic"))


@pytest.mark.parametrize("flow", ["eager", "fx"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(8, 8, 3, padding="same"),
        lambda: nn.Conv2d(8, 8, (3, 5), padding="same", dilation=(1, 2), padding_mode="reflect"),
        lambda: nn.Conv2d(8, 8, 2, padding="valid"),
        lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding="same", bias=False), nn.BatchNorm2d(8), nn.ReLU()),
    ],
)
def test_convolutions_whose_padding_is_a_word_are_quantized(
    layer: Callable[[], nn.Module], flow: str, images_context: Contexts, engine: str
) -> None:
    model, context = around(layer()), images_context()
    (images,) = context.example_inputs.values()
    expected = model(images)
    converted = Static().convert(model, recipe(flow=flow), context)
    assert all(row.quantized for row in converted.coverage)
    assert sqnr_db(expected, converted.model(images)) > 15
    assert torch.equal(saved_and_opened(lambda: around(layer()), converted, context)(images), converted.model(images))


def test_qat_takes_convolutions_whose_padding_is_a_word(images_context: Contexts, engine: str) -> None:
    model, context = around(nn.Conv2d(8, 8, 3, padding="same")), images_context()
    chosen = QatRecipe(name="qat", method="qat")
    prepared = observed(model, make_plan(model, chosen, context.example_inputs), chosen, context.example_inputs)
    prepared(*context.example_inputs.values())
    assert finished(prepared)(*context.example_inputs.values()).shape[1] == 4


def test_same_padding_of_an_even_kernel_is_refused_unless_it_is_excluded(images_context: Contexts, engine: str) -> None:
    layer = nn.Conv2d(8, 8, 2, padding="same")
    with pytest.raises(QuantizationError, match=r"m1 has an even kernel.*exclude"):
        Static().convert(around(layer), recipe(), images_context())
    converted = Static().convert(around(layer), recipe(exclude=("m1",)), images_context())
    assert [row.module for row in converted.coverage if not row.quantized] == ["m1"]


@pytest.mark.parametrize("flow", ["auto", "fx"])
@pytest.mark.parametrize("slopes", [1, 8])
def test_prelu_stays_float_and_survives_saving(slopes: int, flow: str, images_context: Contexts, engine: str) -> None:
    def make() -> nn.Module:
        return around(nn.PReLU(slopes, init=-0.5))

    context = images_context()
    (images,) = context.example_inputs.values()
    model = make()
    expected = model(images)
    converted = Static().convert(model, recipe(flow=flow), context)
    assert {row.module: row.reason for row in converted.coverage if not row.quantized}.keys() == {"m1"}
    assert "PReLU" in next(row.reason for row in converted.coverage if not row.quantized)
    assert torch.equal(saved_and_opened(make, converted, context)(images), converted.model(images))
    assert sqnr_db(expected, converted.model(images)) > 15


@pytest.mark.parametrize("make", [TwiceWithRelu, upsampling, networks.HiddenOperation])
def test_auto_takes_fx_where_eager_mode_turns_out_not_to_do(
    make: Callable[[], nn.Module], images_context: Contexts, engine: str
) -> None:
    model, context = make().eval(), images_context()
    with pytest.raises(QuantizationError, match="cannot run"):
        Static().convert(make().eval(), recipe(flow="eager"), context)
    converted = Static().convert(model, recipe(flow="auto"), context)
    assert converted.flow == "fx"
    (images,) = context.example_inputs.values()
    opened = saved_and_opened(lambda: make().eval(), converted, context)
    assert torch.equal(opened(images), converted.model(images))


def test_a_model_with_weights_that_are_computed_can_fall_back(images_context: Contexts, engine: str) -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        model = around(torch.nn.utils.weight_norm(nn.Conv2d(8, 8, 1)))
    assert Static().convert(model, recipe(), images_context()).flow == "fx"


def test_where_both_flows_fail_both_reasons_are_told(
    images_context: Contexts, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such kernel\nfrom here")

    monkeypatch.setattr("tasks.quantize.graph.fx.prepare_fx", fail)
    with pytest.raises(QuantizationError, match=r"bicubic.*FX graph mode fails as well.*_OnePath.*no such kernel\."):
        Static().convert(upsampling(), recipe(), images_context())


@pytest.mark.parametrize("kind", [RuntimeError, AttributeError, TypeError, AssertionError, NotImplementedError])
@pytest.mark.parametrize(("flow", "step"), [("eager", "convert"), ("eager", "prepare"), ("fx", "convert_fx")])
def test_what_torch_raises_becomes_a_refusal_that_names_model_and_flow(
    kind: type[Exception],
    flow: str,
    step: str,
    images_context: Contexts,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("only works for Conv2d\nand a trace")

    place = "eager" if step == "prepare" else "static"
    monkeypatch.setattr(f"tasks.quantize.{place}.{step}", fail)
    mode = {"eager": "eager mode", "fx": "FX graph mode"}[flow]
    with pytest.raises(QuantizationError, match=rf"_OnePath cannot be \w+ in {mode}: only works for Conv2d\.") as told:
        Static().convert(networks.plain(), recipe(flow=flow), images_context())
    assert "exclude" in told.value.hint
    assert ('flow = "fx"' in told.value.hint) is (flow == "eager")


def test_a_model_that_fuses_itself_by_the_older_protocol_is_quantized(images_context: Contexts, engine: str) -> None:
    converted = Static().convert(OlderProtocol().eval(), recipe(), images_context())
    assert converted.flow == "eager"
    assert all(row.quantized for row in converted.coverage)


def test_the_older_protocol_can_be_trained_as_well(images_context: Contexts, engine: str) -> None:
    model, context = OlderProtocol(), images_context()
    chosen = QatRecipe(name="qat", method="qat")
    prepared = observed(model, make_plan(model, chosen, context.example_inputs), chosen, context.example_inputs)
    assert prepared.training
    prepared(*context.example_inputs.values()).sum().backward()
    assert finished(prepared)(*context.example_inputs.values()).shape[1] == 4

"""Conversion of layers that torch's own conversion trips over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn.intrinsic import quantized as intrinsic
from torch.ao.nn.quantized import reference

from storage.errors import QuantizationError
from tasks.quantize.base import Converted
from tasks.quantize.coverage import leaves_of
from tasks.quantize.dynamic_modules import FourBitEmbedding
from tasks.quantize.graph.convert import convert, cover_fused, has_quantized_kernel, pair_with_float
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.graph.prepare import prepare
from tasks.quantize.methods import QatRecipe, Static, StaticRecipe
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, spec_of
from tasks.quantize.state import flatten_state, load_flat_state
from tests.tasks.quantize import networks
from tests.tasks.quantize.networks import around

Sources = Callable[..., ModelSource]


def recipe(**changes: object) -> Spec:
    small = {"calibration_batches": 2, "calibration_batch_size": 8}
    return spec_of(StaticRecipe(name="static", method="static", **{**small, **changes}))


def sqnr_db(expected: torch.Tensor, actual: torch.Tensor) -> float:
    return float(10 * torch.log10(expected.square().sum() / (expected - actual).square().sum()).detach())


def saved_and_opened(make: Callable[[], nn.Module], converted: Converted, source: ModelSource) -> nn.Module:
    """What the state dict alone gives back, as it goes through the store."""
    skeleton = Static().converter().skeleton(make().eval(), recipe(), converted.graph, source.example_inputs)
    load_flat_state(skeleton, flatten_state(converted.model.state_dict()))
    return skeleton


@pytest.mark.parametrize("graph", ["eager", "fx"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(8, 8, 3, padding="same"),
        lambda: nn.Conv2d(8, 8, (3, 5), padding="same", dilation=(1, 2), padding_mode="reflect"),
        lambda: nn.Conv2d(8, 8, 2, padding="valid"),
        lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding="same", bias=False), nn.BatchNorm2d(8), nn.ReLU()),
    ],
)
@pytest.mark.slow
def test_convolutions_whose_padding_is_a_word_are_quantized(
    layer: Callable[[], nn.Module], graph: str, source_of: Sources, engine: str
) -> None:
    model, source = around(layer()), source_of()
    (images,) = source.example_inputs.values()
    expected = model(images)
    converted = Static().converter().convert(model, recipe(graph=graph), source)
    assert all(row.quantized for row in converted.coverage)
    assert sqnr_db(expected, converted.model(images)) > 15
    assert torch.equal(saved_and_opened(lambda: around(layer()), converted, source)(images), converted.model(images))


@pytest.mark.parametrize("make", [lambda: around(nn.Conv2d(8, 8, 3, padding="same")), networks.OlderProtocol])
@pytest.mark.slow
def test_qat_takes_padding_as_a_word_and_the_older_protocol_of_fusing(
    make: Callable[[], nn.Module], source_of: Sources, engine: str
) -> None:
    model, examples = make(), source_of().example_inputs
    chosen = spec_of(QatRecipe(name="qat", method="qat"))
    prepared = prepare(model, make_plan(model, chosen, examples), chosen, examples)
    assert prepared.training
    prepared(*examples.values()).sum().backward()
    assert convert(prepared)(*examples.values()).shape[1] == 4


@pytest.mark.parametrize("graph", ["auto", "eager", "fx"])
def test_same_padding_of_an_even_kernel_is_refused_unless_it_is_excluded(
    graph: str, source_of: Sources, engine: str
) -> None:
    source = source_of("evenly_padded")
    with pytest.raises(QuantizationError, match=r"m1 has an even kernel size.*exclude"):
        Static().converter().convert(source.float_model(), recipe(graph=graph), source)
    converted = Static().converter().convert(source.float_model(), recipe(graph=graph, exclude=("m1",)), source)
    assert [row.module for row in converted.coverage if not row.quantized] == ["m1"]


@pytest.mark.parametrize("graph", ["auto", "fx"])
@pytest.mark.parametrize("slopes", [1, 8])
def test_prelu_stays_float_and_survives_saving(slopes: int, graph: str, source_of: Sources, engine: str) -> None:
    def make() -> nn.Module:
        return around(nn.PReLU(slopes, init=-0.5))

    source = source_of()
    (images,) = source.example_inputs.values()
    model = make()
    expected = model(images)
    converted = Static().converter().convert(model, recipe(graph=graph), source)
    (row,) = (row for row in converted.coverage if not row.quantized)
    assert row.module == "m1"
    assert "PReLU" in row.reason
    assert torch.equal(saved_and_opened(make, converted, source)(images), converted.model(images))
    assert sqnr_db(expected, converted.model(images)) > 15


@pytest.mark.parametrize("network", ["TwiceWithRelu", "bicubic", "HiddenOperation"])
@pytest.mark.slow
def test_auto_takes_fx_where_eager_mode_turns_out_not_to_work(network: str, source_of: Sources, engine: str) -> None:
    source = source_of(network)
    with pytest.raises(QuantizationError, match="cannot run"):
        Static().converter().convert(source.float_model(), recipe(graph="eager"), source)
    converted = Static().converter().convert(source.float_model(), recipe(graph="auto"), source)
    assert converted.graph == "fx"
    (images,) = source.example_inputs.values()
    opened = saved_and_opened(getattr(networks, network), converted, source)
    assert torch.equal(opened(images), converted.model(images))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.slow
def test_weights_that_are_computed_are_stored_first_and_need_no_fallback(source_of: Sources, engine: str) -> None:
    source = source_of("weight_normed")
    assert Static().converter().convert(source.float_model(), recipe(), source).graph == "eager"


def test_where_both_graph_modes_fail_both_reasons_are_given(
    source_of: Sources, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such kernel\nfrom here")

    source = source_of("bicubic")
    monkeypatch.setattr("tasks.quantize.graph.prepare.prepare_fx", fail)
    with pytest.raises(QuantizationError, match=r"bicubic.*FX graph mode also fails.*_OnePath.*no such kernel"):
        Static().converter().convert(source.float_model(), recipe(), source)


@pytest.mark.parametrize("kind", [RuntimeError, AttributeError, TypeError, AssertionError, NotImplementedError])
@pytest.mark.parametrize(
    ("graph", "place"),
    [
        ("eager", "torch.ao.quantization.convert"),
        ("eager", "torch.ao.quantization.prepare"),
        ("fx", "tasks.quantize.graph.convert.convert_fx"),
    ],
)
@pytest.mark.slow
def test_what_torch_raises_becomes_a_refusal_that_names_model_and_graph_mode(
    kind: type[Exception], graph: str, place: str, source_of: Sources, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("only works for Conv2d\nand a trace")

    source = source_of()
    monkeypatch.setattr(place, fail)
    mode = {"eager": "eager mode", "fx": "FX graph mode"}[graph]
    said = rf"_OnePath cannot be \w+ in {mode}: only works for Conv2d in test_convert.py, line \d+\.$"
    with pytest.raises(QuantizationError, match=said):
        Static().converter().convert(source.float_model(), recipe(graph=graph), source)


def test_a_model_that_fuses_itself_by_the_older_protocol_is_quantized(source_of: Sources, engine: str) -> None:
    source = source_of("OlderProtocol")
    converted = Static().converter().convert(source.float_model(), recipe(), source)
    assert converted.graph == "eager"
    assert all(row.quantized for row in converted.coverage)


IMAGES = {"images": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}


def dynamic_linear() -> nn.Module:
    return quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)))[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ao.nn.quantized.Conv2d(1, 1, 1),
        lambda: intrinsic.ConvReLU2d(1, 1, 1),
        lambda: intrinsic.dynamic.LinearReLU(2, 2),
        lambda: FourBitEmbedding(torch.zeros(1, 5, dtype=torch.uint8)),
        dynamic_linear,
    ],
)
@pytest.mark.slow
def test_modules_of_torchs_quantized_packages_have_quantized_kernels(
    make: Callable[[], nn.Module], engine: str
) -> None:
    assert has_quantized_kernel(make())


@pytest.mark.parametrize("package", ["quantized_models.layers", "mine.quantized", "torch.ao.nn.quantized_mine"])
@pytest.mark.slow
def test_a_users_float_module_has_none_whatever_its_package_is_called(package: str) -> None:
    assert not has_quantized_kernel(type("Layer", (nn.Linear,), {"__module__": package})(2, 2))


def test_torchs_reference_modules_compute_in_float() -> None:
    assert not has_quantized_kernel(reference.Linear(2, 2))


@pytest.mark.parametrize("graph", ["eager", "fx"])
@pytest.mark.slow
def test_fused_modules_are_covered_and_paired_by_the_path_of_their_first_module(graph: str, engine: str) -> None:
    recipe = spec_of(StaticRecipe(name="static", method="static", graph=graph, exclude=("m9",)))
    model = networks.plain()
    plan, leaves = make_plan(model, recipe, IMAGES), leaves_of(model)
    prepared = prepare(model, plan, recipe, IMAGES)
    prepared(*IMAGES.values())
    converted = convert(prepared)
    rows = {row.module: row.reason for row in cover_fused(leaves, converted, plan)}
    assert rows == dict.fromkeys(["m0", "m1", "m3", "m4", "m5", "m11"], "") | {"m9": "excluded by the recipe"}
    pairs = pair_with_float(networks.plain(), converted, recipe, graph, IMAGES)
    assert [pair.path for pair in pairs] == ["m0", "m3", "m5", "m11"]
    assert not any(has_quantized_kernel(pair.float) for pair in pairs)


@pytest.mark.parametrize("method", ["static", "qat"])
def test_a_layer_before_a_relu6_uses_its_steps_for_what_the_activation_keeps(
    method: str, source_of: Sources, engine: str
) -> None:
    source = source_of("clamped")
    (images,) = source.example_inputs.values()
    model = source.float_model()
    spec = recipe() if method == "static" else spec_of(QatRecipe(name="qat", method="qat"))
    plan = make_plan(model, spec, source.example_inputs)
    assert plan.graph == "fx"
    expected = model(images)
    prepared = prepare(model, plan, spec, source.example_inputs)
    prepared(images)
    converted = convert(prepared.eval())
    assert all(0 < layer.scale <= 6 / 127 for layer in (converted.m0, converted.m2))
    assert sqnr_db(expected, converted(images)) > 25

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from storage.errors import QuantizationError
from tasks.quantize.methods import Static, StaticRecipe
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, spec_of
from tasks.quantize.state import flatten_state, load_flat_state
from tests.tasks.quantize import networks

Sources = Callable[..., ModelSource]


def recipe(**changes: object) -> Spec:
    small = {"calibration_batches": 2, "calibration_batch_size": 8}
    return spec_of(StaticRecipe(name="static", method="static", **{**small, **changes}))


def sqnr_db(expected: torch.Tensor, actual: torch.Tensor) -> float:
    return float(10 * torch.log10(expected.square().sum() / (expected - actual).square().sum()))


@pytest.mark.parametrize("graph", ["eager", "fx"])
@pytest.mark.parametrize("observer", ["min-max", "moving-average", "histogram"])
@pytest.mark.slow
def test_the_converted_model_computes_nearly_the_same(
    graph: str, observer: str, source_of: Sources, engine: str
) -> None:
    source = source_of()
    (images,) = source.example_inputs.values()
    expected = source.float_model()(images)
    spec = recipe(graph=graph, activation_observer=observer)
    converted = Static().converter().convert(source.float_model(), spec, source)
    assert converted.graph == graph
    assert sqnr_db(expected, converted.model(images)) > 15
    assert all(row.quantized for row in converted.coverage)


@pytest.mark.parametrize(
    "network",
    [
        "plain",
        "Residual",
        "Concatenating",
        "FunctionalRelu",
        "SharedRelu",
        "OwnStubs",
        "with_unsupported_module",
    ],
)
@pytest.mark.parametrize("graph", ["auto", "fx"])
@pytest.mark.slow
def test_a_skeleton_takes_the_saved_state_and_computes_the_same_bits(
    network: str, graph: str, source_of: Sources, engine: str
) -> None:
    source = source_of(network)
    converted = Static().converter().convert(source.float_model(), recipe(graph=graph), source)
    model = getattr(networks, network)().eval()
    skeleton = Static().converter().skeleton(model, recipe(graph=graph), converted.graph, source.example_inputs)
    load_flat_state(skeleton, flatten_state(converted.model.state_dict()))
    inputs = source.example_inputs.values()
    assert torch.equal(skeleton(*inputs), converted.model(*inputs))


@pytest.mark.parametrize("network", ["resnet18_children_with_head", "resnet18_between_stubs_with_head"])
@pytest.mark.slow
def test_a_sequential_of_a_resnets_children_is_quantized_whole(network: str, source_of: Sources, engine: str) -> None:
    source = source_of(network)
    (images,) = source.example_inputs.values()
    expected = source.float_model()(images)
    converted = Static().converter().convert(source.float_model(), recipe(graph="eager"), source)
    assert sum(row.type == "Conv2d" for row in converted.coverage) == 20
    assert all(row.quantized for row in converted.coverage)
    assert sqnr_db(expected, converted.model(images)) > 10


@pytest.mark.parametrize("graph", ["eager", "fx"])
@pytest.mark.parametrize("name", ["conv1", "bn1", "layer1", "layer2.0.downsample", "fc"])
@pytest.mark.slow
def test_excluded_modules_stay_float(graph: str, name: str, source_of: Sources, engine: str) -> None:
    chosen = recipe(graph=graph, exclude=(name,))
    converted = Static().converter().convert(networks.quantizable_resnet18(), chosen, source_of("quantizable_resnet18"))
    floats = {row.module: row.reason for row in converted.coverage if not row.quantized}
    assert floats
    assert set(floats.values()) == {"excluded by the recipe"}
    related = {"bn1": ("conv1", "bn1"), "conv1": ("conv1", "bn1")}.get(name, (name,))
    assert all(module.startswith(related) for module in floats)


def test_what_the_models_own_stubs_leave_float_says_so(source_of: Sources, engine: str) -> None:
    source = source_of("OwnStubs")
    converted = Static().converter().convert(source.float_model(), recipe(), source)
    assert {row.module: row.reason for row in converted.coverage} == {
        "conv": "",
        "scale": "outside the model's own quantization stubs",
    }


@pytest.mark.slow
def test_two_conversions_give_the_same_bits(source_of: Sources, engine: str) -> None:
    source = source_of()
    first, second = (Static().converter().convert(source.float_model(), recipe(), source).model for _ in range(2))
    inputs = source.example_inputs.values()
    assert torch.equal(first(*inputs), second(*inputs))


@pytest.mark.parametrize("graph", ["auto", "eager", "fx"])
def test_weights_that_are_not_finite_are_refused(graph: str, source_of: Sources, engine: str) -> None:
    source = source_of()
    model = source.float_model()
    with torch.no_grad():
        model.get_submodule("m3").weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(QuantizationError, match="NaN or infinity"):
        Static().converter().convert(model, recipe(graph=graph), source)


def test_an_operation_without_a_quantized_kernel_is_named_with_its_module(source_of: Sources, engine: str) -> None:
    source = source_of("HiddenOperation")
    with pytest.raises(QuantizationError, match=r"aten::erf.*QuantizedCPU.*module block \(_ErfBlock\)"):
        Static().converter().convert(source.float_model(), recipe(graph="eager"), source)


@pytest.mark.parametrize(
    ("network", "graph"),
    [
        ("Upsampling", "eager"),
        ("Upsampling", "fx"),
        ("fused_upsampling", "eager"),
        ("fused_upsampling", "fx"),
        ("UpsamplingTwice", "fx"),
    ],
)
@pytest.mark.slow
def test_transposed_convolutions_stay_float_and_the_coverage_says_why(
    network: str, graph: str, source_of: Sources, engine: str
) -> None:
    source = source_of(network)
    (images,) = source.example_inputs.values()
    expected = source.float_model()(images)
    done = Static().converter().convert(source.float_model(), recipe(graph=graph, engine=engine), source)
    found = {row.type: row for row in done.coverage}
    assert found["Conv2d"].quantized
    assert not found["ConvTranspose2d"].quantized
    assert "wrong for some shapes" in found["ConvTranspose2d"].reason
    assert sqnr_db(expected, done.model(images)) > 15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("resnet18", 32), ("resnet50", 32), ("resnext101_32x8d", 32), ("mobilenet_v2", 32), ("mobilenet_v3_large", 32),
        ("shufflenet_v2_x0_5", 64), ("googlenet", 64), ("inception_v3", 96),
    ],
)  # fmt: skip
@pytest.mark.long
def test_every_torchvision_family_converts(name: str, side: int, source_of: Sources, engine: str) -> None:
    from tasks.domains.image_classification import TorchvisionSpec
    from tasks.domains.image_classification.network import build_vision
    from tasks.quantize.graph.convert import convert
    from tasks.quantize.graph.plan import make_plan
    from tasks.quantize.graph.prepare import prepare
    from tasks.quantize.graph.trace import try_out

    examples = {"images": torch.randn(1, 3, side, side)}
    model: nn.Module = build_vision(TorchvisionSpec(kind="torchvision", name=name), source_of().architecture.dataset)
    chosen = recipe(activation_observer="min-max")
    plan = make_plan(model.eval(), chosen, examples)
    assert plan.graph == "eager"
    prepared = prepare(model, plan, chosen, examples)
    with torch.no_grad():
        prepared(*examples.values())
    try_out(convert(prepared), examples)

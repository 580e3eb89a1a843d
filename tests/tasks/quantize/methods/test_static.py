from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from storage.errors import QuantizationError
from tasks.quantize.base import Context
from tasks.quantize.methods.static import Static, StaticRecipe
from tasks.quantize.state import flatten_state, restore_state, versions_of
from tests.tasks.quantize import networks

Contexts = Callable[..., Context]
SMALL = {"calibration_batches": 2, "calibration_batch_size": 8}


def recipe(**changes: object) -> StaticRecipe:
    return StaticRecipe(name="static", method="static", **{**SMALL, **changes})


def sqnr_db(expected: torch.Tensor, actual: torch.Tensor) -> float:
    return float(10 * torch.log10(expected.square().sum() / (expected - actual).square().sum()))


@pytest.mark.parametrize("flow", ["eager", "fx"])
@pytest.mark.parametrize("observer", ["min-max", "moving-average", "histogram"])
def test_the_converted_model_computes_nearly_the_same(
    flow: str, observer: str, images_context: Contexts, engine: str
) -> None:
    model, context = networks.plain(), images_context()
    expected = model(*context.example_inputs.values())
    converted = Static().convert(model, recipe(flow=flow, activation_observer=observer), context)
    assert converted.flow == flow
    assert sqnr_db(expected, converted.model(*context.example_inputs.values())) > 15
    assert all(row.quantized for row in converted.coverage)


@pytest.mark.parametrize(
    "make",
    [
        networks.plain,
        networks.Residual,
        networks.Concatenating,
        networks.FunctionalRelu,
        networks.SharedRelu,
        networks.OwnStubs,
        networks.with_unsupported_module,
    ],
)
@pytest.mark.parametrize("flow", ["auto", "fx"])
def test_a_skeleton_takes_the_saved_state_and_computes_the_same_bits(
    make: Callable[[], nn.Module], flow: str, images_context: Contexts, engine: str
) -> None:
    context = images_context()
    converted = Static().convert(make().eval(), recipe(flow=flow), context)
    state = converted.model.state_dict()
    restored = restore_state(*flatten_state(state), versions_of(state))
    skeleton = Static().skeleton(make().eval(), recipe(flow=flow), converted.flow, context.example_inputs)
    skeleton.load_state_dict(restored)
    inputs = context.example_inputs.values()
    assert torch.equal(skeleton(*inputs), converted.model(*inputs))


@pytest.mark.parametrize("make", [networks.resnet18_children_with_head, networks.resnet18_between_stubs_with_head])
def test_a_sequential_of_a_resnets_children_is_quantized_whole(
    make: Callable[[], nn.Module], images_context: Contexts, engine: str
) -> None:
    model, context = make(), images_context()
    expected = model(*context.example_inputs.values())
    converted = Static().convert(model, recipe(flow="eager"), context)
    assert sum(row.type == "Conv2d" for row in converted.coverage) == 20
    assert all(row.quantized for row in converted.coverage)
    assert sqnr_db(expected, converted.model(*context.example_inputs.values())) > 10


@pytest.mark.parametrize("flow", ["eager", "fx"])
@pytest.mark.parametrize("name", ["conv1", "bn1", "layer1", "layer2.0.downsample", "fc"])
def test_excluded_modules_stay_float(flow: str, name: str, images_context: Contexts, engine: str) -> None:
    converted = Static().convert(networks.quantizable_resnet18(), recipe(flow=flow, exclude=(name,)), images_context())
    floats = {row.module: row.reason for row in converted.coverage if not row.quantized}
    assert floats
    assert set(floats.values()) == {"excluded by the recipe"}
    related = {"bn1": ("conv1", "bn1"), "conv1": ("conv1", "bn1")}.get(name, (name,))
    assert all(module.startswith(related) for module in floats)


def test_what_the_models_own_stubs_leave_float_says_so(images_context: Contexts, engine: str) -> None:
    converted = Static().convert(networks.OwnStubs().eval(), recipe(), images_context())
    assert {row.module: row.reason for row in converted.coverage} == {
        "conv": "",
        "scale": "outside the model's own quantization stubs",
    }


def test_two_conversions_give_the_same_bits(images_context: Contexts, engine: str) -> None:
    context = images_context()
    outputs = []
    for _ in range(2):
        torch.manual_seed(3)
        model = Static().convert(networks.plain(), recipe(), context).model
        outputs.append(model(*context.example_inputs.values()))
    assert torch.equal(*outputs)


def test_an_empty_calibration_set_is_refused(images_context: Contexts, engine: str, tmp_path: object) -> None:
    from storage.artifacts import ArtifactStore
    from tasks.domains.image_classification.images import load_images

    context = images_context()
    split = load_images(context.dataset, "calibration", context.store)
    empty = type(split)(split.images[:0], split.labels[:0], split.mean, split.std)
    assert isinstance(context.store, ArtifactStore)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.quantize.graph.calibrate.load_images", lambda *_: empty)
        with pytest.raises(QuantizationError, match=r"no calibration images.*data.calibration"):
            Static().convert(networks.plain(), recipe(), context)


@pytest.mark.parametrize("flow", ["eager", "fx"])
def test_weights_that_are_not_finite_are_refused(flow: str, images_context: Contexts, engine: str) -> None:
    model = networks.plain()
    with torch.no_grad():
        model.get_submodule("m3").weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(QuantizationError, match="NaN or infinity"):
        Static().convert(model, recipe(flow=flow), images_context())


def test_an_operation_without_a_quantized_kernel_is_named_with_its_module(
    images_context: Contexts, engine: str
) -> None:
    with pytest.raises(QuantizationError, match=r"aten::erf.*QuantizedCPU.*module block \(_ErfBlock\).*exclude"):
        Static().convert(networks.HiddenOperation().eval(), recipe(flow="eager"), images_context())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("resnet18", 32), ("resnet50", 32), ("resnext101_32x8d", 32), ("mobilenet_v2", 32), ("mobilenet_v3_large", 32),
        ("shufflenet_v2_x0_5", 64), ("googlenet", 64), ("inception_v3", 96),
    ],
)  # fmt: skip
def test_every_torchvision_family_converts(name: str, side: int, images_context: Contexts, engine: str) -> None:
    from tasks.domains.image_classification.sections import TorchvisionSpec
    from tasks.models import build
    from tasks.quantize.graph.eager_mode import observed
    from tasks.quantize.graph.plan import make_plan
    from tasks.quantize.graph.smoke_test import try_out
    from tasks.quantize.methods.static import finished

    examples = {"images": torch.randn(1, 3, side, side)}
    model = build(TorchvisionSpec(kind="torchvision", name=name), images_context().dataset)
    chosen = recipe(activation_observer="min-max")
    plan = make_plan(model, chosen, examples)
    assert plan.flow == "eager"
    prepared = observed(model, plan, chosen, examples)
    with torch.no_grad():
        prepared(*examples.values())
    try_out(finished(prepared), examples)

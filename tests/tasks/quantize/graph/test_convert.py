"""Static quantization of complete models: what is converted, what stays in float, and what is refused."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from storage.errors import QuantizationError
from tasks.quantize.converted import flatten_state, load_flat_state
from tasks.quantize.graph.convert import StaticConverter, convert, has_quantized_kernel, pair_with_float
from tasks.quantize.graph.prepare import prepare, qconfig_for
from tasks.quantize.graph.trace import try_out
from tasks.quantize.methods import QatRecipe, StaticRecipe
from tasks.quantize.source import Converted, ModelSource
from tasks.quantize.spec import Spec, spec_of
from tests.tasks.quantize import networks
from tests.tasks.quantize.networks import around

pytestmark = pytest.mark.slow

Sources = Callable[..., ModelSource]
IMAGES = {"images": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}


def recipe(**changes: object) -> Spec:
    small = {"calibration_batches": 2, "calibration_batch_size": 8}
    return spec_of(StaticRecipe(name="static", method="static", **{**small, **changes}))


def sqnr_db(expected: Tensor, actual: Tensor) -> float:
    return float(10 * torch.log10(expected.square().sum() / (expected - actual).square().sum()).detach())


def converted(source: ModelSource, **changes: object) -> Converted:
    return StaticConverter().convert(source.float_model(), recipe(**changes), source)


def left_float(done: Converted) -> dict[str, str]:
    return {row.module: row.reason for row in done.coverage if not row.quantized}


def assert_close_and_saved(make: Callable[[], nn.Module], source: ModelSource, **changes: object) -> Converted:
    """Convert the source's model; it stays close to float, and its state dict alone gives it back."""
    inputs = source.example_inputs.values()
    expected, done = source.float_model()(*inputs), converted(source, **changes)
    assert sqnr_db(expected, done.model(*inputs)) > 15
    skeleton = StaticConverter().skeleton(make().eval(), recipe(**changes), source.example_inputs)
    load_flat_state(skeleton, flatten_state(done.model.state_dict()))
    assert torch.equal(skeleton(*inputs), done.model(*inputs))
    return done


@pytest.mark.parametrize("observer", ["min-max", "moving-average", "histogram"])
def test_the_converted_model_computes_nearly_the_same(observer: str, source_of: Sources, engine: str) -> None:
    assert not left_float(assert_close_and_saved(networks.plain, source_of(), activation_observer=observer))


@pytest.mark.parametrize("network", ["Residual", "SharedRelu", "OwnStubs"])
def test_every_layer_of_a_model_is_converted(network: str, source_of: Sources, engine: str) -> None:
    assert not left_float(assert_close_and_saved(getattr(networks, network), source_of(network)))


@pytest.mark.parametrize("name", ["bn1", "layer2.0.downsample"])
def test_excluded_modules_stay_float(name: str, source_of: Sources, engine: str) -> None:
    floats = left_float(converted(source_of("quantizable_resnet18"), exclude=(name,)))
    assert set(floats.values()) == {"excluded by the recipe"}
    related = ("conv1", "bn1") if name == "bn1" else (name,)
    assert all(module.startswith(related) for module in floats)


def test_unknown_exclusions_are_all_listed_with_similar_names(source_of: Sources) -> None:
    with pytest.raises(QuantizationError, match=r'layer9.*, conv11 \(did you mean "conv1"'):
        converted(source_of("quantizable_resnet18"), exclude=("layer9", "conv11", "fc"))


def test_a_model_that_cannot_be_traced_is_refused_with_the_reason_and_the_place(source_of: Sources) -> None:
    with pytest.raises(QuantizationError, match=r"DataDependent cannot be traced.*control flow.* in networks.py, line"):
        converted(source_of("DataDependent"))


def test_weights_that_are_not_finite_are_refused(source_of: Sources, engine: str) -> None:
    source = source_of()
    model = source.float_model()
    with torch.no_grad():
        model.get_submodule("m3").weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(QuantizationError, match=r"tiny cannot be calibrated: .* is not finite"):
        StaticConverter().convert(model, recipe(), source)


def test_a_graph_that_fails_names_the_module_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    graph = fx.symbolic_trace(networks.plain())
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    with graph.graph.inserting_before(output):
        failing = graph.graph.call_function(operator.matmul, (output.args[0], 3))
    output.args = (failing,)
    graph.recompile()
    with pytest.raises(QuantizationError, match=r"in the operation matmul, in or after module m11"):
        try_out(graph, IMAGES)
    graph.set_submodule("m3", nn.Conv2d(4, 8, 3))
    with pytest.raises(QuantizationError, match="in or after module m3"):
        try_out(graph, IMAGES)
    assert capfd.readouterr() == ("", "")


def test_torchs_errors_become_a_refusal_that_names_the_model(
    source_of: Sources, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("only works for Conv2d\nand a trace")

    monkeypatch.setattr("tasks.quantize.graph.convert.convert_fx", fail)
    said = r"_OnePath cannot be \w+: AssertionError: only works for Conv2d in test_convert.py, line \d+\.$"
    with pytest.raises(QuantizationError, match=said):
        converted(source_of())


def test_transposed_convolutions_stay_float_and_the_coverage_says_why(source_of: Sources, engine: str) -> None:
    done = assert_close_and_saved(networks.fused_upsampling, source_of("fused_upsampling"))
    found = {row.type: row for row in done.coverage}
    assert found["Conv2d"].quantized
    assert "wrong for some shapes" in found["ConvTranspose2d"].reason


@pytest.mark.parametrize("method", ["static", "qat"])
def test_layers_that_forward_calls_as_functions_stay_float(method: str, source_of: Sources, engine: str) -> None:
    source, (images,) = source_of("FunctionalProducts"), source_of().example_inputs.values()
    spec = recipe() if method == "static" else spec_of(QatRecipe(name="qat", method="qat"))
    prepared = prepare(source.float_model(), spec, source.example_inputs)
    prepared.observing(images)
    done = convert(prepared.graph)
    assert sqnr_db(source.float_model()(images), done(images)) > 15
    assert torch.equal(done(images), done(images))  # no functional dropout stays in the graph


def test_prelu_stays_float_and_survives_saving(source_of: Sources, engine: str) -> None:
    (reason,) = left_float(assert_close_and_saved(networks.rectified, source_of("rectified"))).values()
    assert "PReLU" in reason


def test_padding_as_a_word_is_quantized(source_of: Sources, engine: str) -> None:
    assert not left_float(assert_close_and_saved(networks.padded_by_words, source_of("padded_by_words")))


def test_same_padding_of_an_even_kernel_stays_float(source_of: Sources, engine: str) -> None:
    assert list(left_float(assert_close_and_saved(networks.evenly_padded, source_of("evenly_padded")))) == ["m1"]
    assert list(left_float(converted(source_of("evenly_padded"), exclude=("m1",)))) == ["m1"]


def test_fused_modules_are_covered_and_paired_by_the_path_of_their_first_module(
    source_of: Sources, engine: str
) -> None:
    source = source_of()
    done = converted(source, exclude=("m9",))
    assert left_float(done) == {"m9": "excluded by the recipe"}
    assert [row.module for row in done.coverage] == ["m0", "m1", "m3", "m4", "m5", "m9", "m11"]
    pairs = pair_with_float(source.float_model(), done.model, recipe(), source.example_inputs)
    assert [pair.path for pair in pairs] == ["m0", "m3", "m5", "m11"]
    assert not any(has_quantized_kernel(pair.float) for pair in pairs)


@pytest.mark.parametrize("method", ["static", "qat"])
def test_a_layer_before_a_relu6_uses_its_steps_for_the_range_of_the_activation(
    method: str, source_of: Sources, engine: str
) -> None:
    source = source_of("clamped")
    (images,) = source.example_inputs.values()
    spec = recipe() if method == "static" else spec_of(QatRecipe(name="qat", method="qat"))
    expected = source.float_model()(images)
    prepared = prepare(source.float_model(), spec, source.example_inputs)
    prepared.observing(images)
    done = convert(prepared.graph)
    assert all(0 < layer.scale <= 6 / 127 for layer in (done.m0, done.m2))
    assert sqnr_db(expected, done(images)) > 25


MODULES: list[Callable[[], nn.Module]] = [
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardswish, nn.Sigmoid, nn.Tanh, nn.Hardsigmoid, nn.Dropout,
    nn.SiLU, lambda: nn.MaxPool2d(2), lambda: nn.Upsample(scale_factor=2),
    lambda: nn.BatchNorm2d(8), lambda: nn.GroupNorm(2, 8), lambda: nn.InstanceNorm2d(8), lambda: nn.LayerNorm(7),
    lambda: nn.Upsample(scale_factor=2, mode="bicubic"),
]  # fmt: skip


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: str(kind()).partition("(")[0])
def test_modules_are_close_to_float_and_keep_their_state(kind: Callable[[], nn.Module], engine: str) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return around(kind())

    inputs = IMAGES.values()
    expected, prepared = make()(*inputs), prepare(make(), recipe(), IMAGES)
    with torch.no_grad():
        prepared.observing(*inputs)
    done = convert(prepared.graph)
    try_out(done, IMAGES)
    assert (expected - done(*inputs)).abs().mean() < 0.1 * expected.abs().mean() + 0.01
    skeleton = StaticConverter().skeleton(make(), recipe(), IMAGES)
    load_flat_state(skeleton, flatten_state(done.state_dict()))
    assert torch.equal(skeleton(*inputs), done(*inputs))


MASKINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda x, mask: x * mask,
    "to": lambda x, mask: x * mask.to(x.dtype),
    "fill": lambda x, mask: x.masked_fill(~mask.bool(), 0.5),
    "where": lambda x, mask: torch.where(mask.bool(), x, torch.zeros_like(x)),
    "positions": lambda x, mask: x * (mask.cumsum(2) > 2),
}


class Masked(nn.Module):
    """A Linear layer, a mask, and a Linear layer, with parameters that data may leave out."""

    def __init__(self, masking: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.masking, self.first, self.last = masking, nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, rows: Tensor, mask: Tensor, scale: float = 1.0, *, mode: str = "sum") -> Tensor:
        kept = self.masking(self.first(rows), mask) * (scale if scale > 0.5 else 0.0)
        return self.last((kept if mode == "mean" else kept.sum(1)) / mask.sum(1).clamp(min=1))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
@pytest.mark.parametrize("masking", MASKINGS)
def test_masks_are_not_observed_and_further_parameters_keep_their_defaults(
    masking: str, dtype: torch.dtype, engine: str
) -> None:
    torch.manual_seed(0)
    model = Masked(MASKINGS[masking]).eval()
    mask = (torch.arange(5).view(1, 5, 1) < torch.tensor([[[3]], [[5]]])).to(dtype)
    inputs = {"rows": torch.randn(2, 5, 6), "mask": mask}
    with torch.no_grad():
        expected = model(*inputs.values())
        prepared = prepare(model, recipe(), inputs)
        prepared.observing(*inputs.values())
    done = convert(prepared.graph)
    assert (done(*inputs.values()) - expected).abs().max() < 0.1 * (expected.max() - expected.min())


@pytest.mark.parametrize(("name", "side"), [("mobilenet_v3_large", 32), ("shufflenet_v2_x0_5", 64)])
@pytest.mark.long
def test_a_network_of_torchvisions_converts(name: str, side: int, source_of: Sources, engine: str) -> None:
    from tasks.domains.image_classification import TorchvisionSpec
    from tasks.domains.image_classification.network import build_vision

    examples = {"images": torch.randn(1, 3, side, side)}
    model: nn.Module = build_vision(TorchvisionSpec(kind="torchvision", name=name), source_of().architecture.dataset)
    prepared = prepare(model.eval(), recipe(activation_observer="min-max"), examples)
    with torch.no_grad():
        prepared.observing(*examples.values())
    try_out(convert(prepared.graph), examples)


@pytest.mark.parametrize(
    ("engine", "saturates", "reduced"),
    [
        ("x86", True, True),
        ("x86", False, True),
        ("fbgemm", False, True),
        ("onednn", True, True),
        ("onednn", False, False),
        ("qnnpack", False, False),
    ],
)
def test_the_range_is_reduced_where_the_engine_may_saturate(
    monkeypatch: pytest.MonkeyPatch, engine: str, saturates: bool, reduced: bool
) -> None:
    monkeypatch.setattr("tasks.quantize.graph.prepare.saturates", {engine: saturates}.get)
    assert qconfig_for(recipe(engine=engine)).activation().reduce_range is reduced
    trained = qconfig_for(spec_of(QatRecipe(name="q", method="qat", engine=engine))).activation()
    assert trained.activation_post_process.quant_max == (127 if reduced else 255)

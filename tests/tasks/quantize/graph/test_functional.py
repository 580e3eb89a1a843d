"""Products that forward calls as functions are packed, saved, opened again and counted like modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from tasks.quantize.graph.convert import convert
from tasks.quantize.graph.functional import with_plain_layers
from tasks.quantize.graph.prepare import prepare
from tasks.quantize.methods import QatRecipe
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import spec_of
from tests.tasks.quantize import networks
from tests.tasks.quantize.graph.test_convert import assert_close_and_saved, converted, left_float

Sources = Callable[..., ModelSource]


@pytest.mark.parametrize(
    "network", ["FunctionalProducts", "Volumes", "FunctionalRelu", "ReadsItsWeights", "norm_and_act"]
)
@pytest.mark.slow
def test_functional_products_are_quantized_and_opened_again(network: str, source_of: Sources, engine: str) -> None:
    assert not left_float(assert_close_and_saved(getattr(networks, network), source_of(network)))


@pytest.mark.parametrize("name", ["stem.0", "child", "signal", "head"])
@pytest.mark.slow
def test_the_module_that_owns_the_weight_can_be_excluded(name: str, source_of: Sources, engine: str) -> None:
    found = converted(source_of("FunctionalProducts"), exclude=(name,))
    assert left_float(found) == {name: "excluded by the recipe"}


@pytest.mark.parametrize("network", ["FunctionalProducts", "functional_dropout"])
def test_functional_products_are_trained_and_converted(network: str, source_of: Sources, engine: str) -> None:
    source = source_of(network)
    chosen = spec_of(QatRecipe(name="qat", method="qat", exclude=("m3",) if network == "functional_dropout" else ()))
    prepared, (images,) = prepare(source.float_model(), chosen, source.example_inputs), source.example_inputs.values()
    prepared.observing(images).sum().backward()
    done = convert(prepared.graph)
    assert not [name for name, _ in done.named_parameters() if name.endswith("weight")]
    assert torch.equal(done(images), done(images))  # no functional dropout stays in the graph


def rewritten(model: nn.Module) -> tuple[fx.GraphModule, set[str]]:
    """The graph module, and the paths of the modules in it that replace modules of the model."""
    graph, modules = with_plain_layers(model, fx.symbolic_trace(model).graph), dict(model.named_modules())
    called = {str(node.target) for node in graph.graph.nodes if node.op == "call_module"}
    return graph, {path for path in called & modules.keys() if graph.get_submodule(path) is not modules[path]}


def test_each_of_several_layers_that_call_a_module_of_their_own_becomes_a_plain_one() -> None:
    class Padded(nn.Conv2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels, 4, 3)
            self.padding_before = nn.ZeroPad2d((0, 1, 0, 1))

        def forward(self, images: Tensor) -> Tensor:
            return functional.conv2d(self.padding_before(images), self.weight, self.bias)

    model, images = nn.Sequential(Padded(2), Padded(4), nn.Sequential(Padded(4))), torch.randn(1, 2, 8, 8)
    graph, plain = rewritten(model)
    assert plain == {"0", "1", "2.0"}
    assert torch.equal(graph(images), model(images))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, layer: functional.conv2d(x, layer.weight),
        lambda x, layer: functional.conv2d(x, layer.weight, layer.bias, 2, (1,), groups=1),
        lambda x, layer: functional.conv2d(x, bias=layer.bias, weight=layer.weight, padding="same"),
        lambda x, layer: functional.conv2d(x, layer.weight, dilation=[2, 1], padding="valid"),
    ],
)
@pytest.mark.slow
def test_a_function_becomes_the_module_that_computes_the_same_with_the_same_parameters(
    call: Callable[[Tensor, nn.Conv2d], Tensor],
) -> None:
    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(2, 4, (3, 5), padding=7)

        def forward(self, images: Tensor) -> Tensor:
            return call(images, self.inner)

    model, images = Calling(), torch.randn(1, 2, 16, 16)
    graph, plain = rewritten(model)
    assert plain == {"inner"}
    assert type(graph.inner) is nn.Conv2d
    assert graph.inner.weight is model.inner.weight
    assert torch.equal(graph(images), model(images))
    assert model.inner.padding == (7, 7)  # the model is as it was


def test_a_subclass_of_a_batch_norm_becomes_one_and_what_it_calls_moves_out_of_it() -> None:
    model, images = networks.norm_and_act(), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        model.m1.running_mean += 0.5
    graph, plain = rewritten(model)
    assert plain == {"m1", "m3"}
    assert type(graph.m1) is nn.BatchNorm2d
    assert type(graph.m1_act) is nn.ReLU
    assert torch.equal(graph(images), model(images))
    trained = with_plain_layers(model, fx.symbolic_trace(model).graph, training=True)
    before = model.m1.running_mean.clone()
    trained(images)
    assert not torch.equal(model.m1.running_mean, before)  # it is shared


class SharedWeight(nn.Module):
    """Its weight goes into two functions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return functional.linear(functional.linear(rows, self.inner.weight, self.inner.bias), weight=self.inner.weight)


class OwnWeight(nn.Module):
    """Its weight is no module's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, rows: Tensor) -> Tensor:
        return functional.conv1d(input=rows.unsqueeze(-1), weight=self.weight.unsqueeze(-1), stride=2)


class CalledBesides(nn.Module):
    """Its weight's module is called as well."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return functional.linear(self.inner(rows), self.inner.weight)


class WithLayerInside(nn.Linear):
    """Calls another layer with weights besides."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.other = nn.Linear(4, 4)

    def forward(self, rows: Tensor) -> Tensor:
        return functional.linear(self.other(rows), self.weight, self.bias)


@pytest.mark.parametrize(
    "make", [SharedWeight, OwnWeight, CalledBesides, lambda: networks.one_path(WithLayerInside()), nn.Identity]
)
@pytest.mark.slow
def test_what_no_module_can_stand_for_stays_a_function_with_every_argument_in_its_place(
    make: Callable[[], nn.Module],
) -> None:
    model, rows = make(), torch.randn(3, 4)
    graph, plain = rewritten(model)
    assert not plain
    assert torch.equal(graph(rows), model(rows))
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in (functional.linear, functional.conv1d):
            assert not node.kwargs
            assert len(node.args) == (3 if node.target is functional.linear else 7)
            assert all(isinstance(value, tuple) for value in node.args[3:6])

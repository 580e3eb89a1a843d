"""A converted model that cannot run is refused in one line, which says where it failed; nothing is printed."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx, nn
from torch.ao.quantization.quantize_fx import convert_fx

from storage.errors import QuantizationError
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.graph.prepare import prepare
from tasks.quantize.graph.trace import try_out
from tasks.quantize.methods import StaticRecipe
from tasks.quantize.spec import spec_of
from tests.tasks.quantize.networks import plain

IMAGES = {"images": torch.zeros(1, 3, 16, 16)}


def graph_module() -> fx.GraphModule:
    return fx.symbolic_trace(plain())


@pytest.mark.slow
def test_a_graph_that_fails_in_a_module_names_it(capfd: pytest.CaptureFixture[str]) -> None:
    graph = graph_module()
    graph.set_submodule("m3", nn.Conv2d(4, 8, 3))
    with pytest.raises(QuantizationError, match=r"in module m3 \(Conv2d\)\.$") as caught:
        try_out(graph, IMAGES)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_graph_that_fails_between_modules_names_the_one_before(capfd: pytest.CaptureFixture[str]) -> None:
    graph = graph_module()
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    with graph.graph.inserting_before(output):
        failing = graph.graph.call_function(operator.matmul, (output.args[0], 3))
    output.args = (failing,)
    graph.recompile()
    with pytest.raises(QuantizationError, match=r"in matmul after module m11 \(Linear\)"):
        try_out(graph, IMAGES)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_graph_that_fails_before_any_module_names_the_operation() -> None:
    class Doubled(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten() @ torch.zeros(2)

    with pytest.raises(QuantizationError, match="in the operation matmul"):
        try_out(fx.symbolic_trace(Doubled()), IMAGES)


@pytest.mark.slow
def test_outputs_that_are_not_finite_are_refused() -> None:
    with pytest.raises(QuantizationError, match="NaN or infinity for the example inputs after conversion"):
        try_out(nn.Threshold(1.0, float("inf")), IMAGES)


class Optional(nn.Module):
    """A module with parameters that data may leave out, and that decide what `forward` computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(
        self,
        values: torch.Tensor,
        mask: torch.Tensor | None = None,
        scale: float = 1.0,
        embed: bool = False,
        *,
        mode: str = "mean",
    ) -> torch.Tensor:
        values = torch.relu(self.first(values))
        if mask is not None:
            values = values * mask
        if embed:
            return values
        return self.last(values if mode == "sum" else values / 2) * (scale if scale > 0.5 else 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["auto", "fx"])
@pytest.mark.parametrize("masked", [True, False])
def test_parameters_that_the_data_leave_out_keep_their_defaults(masked: bool, graph: str) -> None:
    torch.manual_seed(0)
    model, inputs = Optional().eval(), {"values": torch.randn(16, 4)}
    if masked:
        inputs |= {"mask": (torch.rand(16, 8) > 0.5).float()}
    expected = model(*inputs.values())
    spec = spec_of(StaticRecipe.model_validate({"name": "int8", "method": "static", "graph": graph}))
    prepared = prepare(model, make_plan(model, spec, inputs), spec, inputs)
    with torch.no_grad():
        prepared(*inputs.values())
        assert isinstance(prepared, fx.GraphModule)
        outputs = convert_fx(prepared)(*inputs.values())
        assert float((outputs - expected).abs().max() / expected.abs().max()) < 0.05

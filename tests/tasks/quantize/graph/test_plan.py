from __future__ import annotations

import pytest
import torch
from torch import nn

from storage.errors import QuantizationError
from tasks.quantize.graph.plan import Plan, make_plan
from tasks.quantize.methods.static import StaticRecipe
from tasks.quantize.spec import spec_of
from tests.tasks.quantize import networks

IMAGES = {"images": torch.zeros(2, 3, 8, 8)}


def plan_for(model: nn.Module, **recipe: object) -> Plan:
    return make_plan(model.eval(), spec_of(StaticRecipe(name="static", method="static", **recipe)), IMAGES)


@pytest.mark.parametrize(
    ("model", "graph", "borders"),
    [
        (networks.plain, "eager", "around"),
        (networks.quantizable_resnet18, "eager", "own"),
        (networks.resnet18_children_with_head, "eager", "around"),
        (networks.resnet18_between_stubs_with_head, "eager", "around"),
        (networks.OwnStubs, "eager", "own"),
        (networks.Residual, "fx", "around"),
        (networks.Concatenating, "fx", "around"),
        (networks.FunctionalRelu, "fx", "around"),
        (networks.with_unsupported_module, "fx", "around"),
    ],
)
@pytest.mark.slow
def test_auto_takes_eager_where_it_expresses_the_model_whole(model: type[nn.Module], graph: str, borders: str) -> None:
    plan = plan_for(model())
    assert (plan.graph, plan.borders) == (graph, borders)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (networks.Residual, '"add"'),
        (networks.Concatenating, '"cat"'),
        (networks.with_unsupported_module, "m1 of type SiLU"),
    ],
)
@pytest.mark.slow
def test_eager_on_what_it_cannot_express_names_the_operation(model: type[nn.Module], named: str) -> None:
    with pytest.raises(QuantizationError, match=named):
        plan_for(model(), graph="eager")


def test_excluding_the_module_makes_eager_possible() -> None:
    assert plan_for(networks.with_unsupported_module(), graph="eager", exclude=("m1",)).graph == "eager"


@pytest.mark.parametrize("graph", ["auto", "eager", "fx"])
def test_a_model_that_cannot_be_traced_is_refused_with_the_reason_and_the_place(graph: str) -> None:
    with pytest.raises(QuantizationError, match=r"DataDependent cannot be traced.*control flow.*DataDependent.forward"):
        plan_for(networks.DataDependent(), graph=graph)


@pytest.mark.slow
def test_unknown_exclusions_are_all_listed_with_what_is_near() -> None:
    with pytest.raises(QuantizationError, match=r'layer9.*, conv11 \(did you mean "conv1"'):
        plan_for(networks.quantizable_resnet18(), exclude=("layer9", "conv11", "fc"))


def test_what_lies_outside_the_models_own_stubs_stays_float() -> None:
    assert plan_for(networks.OwnStubs()).outside == ("scale",)


def test_an_excluded_module_is_named_by_the_head_of_its_chain() -> None:
    assert plan_for(networks.plain(), exclude=("m1", "m2")).excluded == ("m0",)


def test_a_module_within_an_excluded_one_is_not_named_twice() -> None:
    assert plan_for(networks.quantizable_resnet18(), exclude=("layer1.0.conv1", "layer1")).excluded == ("layer1",)

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from storage.errors import QuantizationError
from tasks.quantize.graph.plan import Plan, find_chains, fuse_chains, has_functional_relu_to_fuse, make_plan
from tasks.quantize.graph.trace import trace
from tasks.quantize.methods import StaticRecipe
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
    with pytest.raises(QuantizationError, match=r"DataDependent cannot be traced.*control flow.* in networks.py, line"):
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


IMAGES = {"images": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))}


def chains_of(model: nn.Module, inputs: dict[str, torch.Tensor] = IMAGES, *, is_qat: bool = False) -> list[list[str]]:
    return list(map(list, find_chains(trace(model.eval(), inputs), is_qat=is_qat)))


@pytest.mark.parametrize(
    ("stages", "length"),
    [
        ((nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), 2),
        ((nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), 3),
        ((nn.Conv2d(3, 4, 3), nn.ReLU()), 2),
        ((nn.BatchNorm2d(3), nn.ReLU()), 2),
        ((nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)), 2),
        ((nn.Flatten(), nn.Linear(192, 4), nn.ReLU()), 2),
        ((nn.Flatten(), nn.Linear(192, 4), nn.BatchNorm1d(4)), 2),
        ((nn.Flatten(2), nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), 3),
    ],
)
@pytest.mark.slow
def test_each_kind_of_chain_is_found_and_computes_the_same(stages: tuple[nn.Module, ...], length: int) -> None:
    model = networks.one_path(*stages)
    expected = model(*IMAGES.values())
    chains = find_chains(trace(model, IMAGES), is_qat=False)
    assert [len(chain) for chain in chains] == [length]
    fuse_chains(model, chains, is_qat=False)
    torch.testing.assert_close(model(*IMAGES.values()), expected, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) for module in model.children())


@pytest.mark.parametrize(
    "stages",
    [
        (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)),
        (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
        (nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU()),
        (nn.Flatten(2), nn.Linear(64, 3), nn.BatchNorm1d(3)),
    ],
    ids=["no affine", "no statistics", "not adjacent", "norm over another axis"],
)
@pytest.mark.slow
def test_what_no_kernel_computes_is_left_alone(stages: tuple[nn.Module, ...]) -> None:
    assert chains_of(networks.one_path(*stages)) == []


def test_a_module_that_is_called_twice_is_not_fused() -> None:
    assert chains_of(networks.SharedRelu()) == []


def test_an_output_with_two_consumers_ends_the_chain() -> None:
    assert chains_of(networks.TwoConsumers()) == []


@pytest.mark.slow
def test_transposed_convolutions_are_not_fused_for_training() -> None:
    model = networks.one_path(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4))
    assert chains_of(model, is_qat=True) == []


def test_a_functional_relu_that_a_kernel_could_compute_is_noticed() -> None:
    assert has_functional_relu_to_fuse(trace(networks.FunctionalRelu().eval(), IMAGES))
    assert not has_functional_relu_to_fuse(trace(networks.plain(), IMAGES))


def test_all_convolutions_among_a_resnets_children_are_fused() -> None:
    chains = chains_of(networks.resnet18_children_with_head(), {"images": torch.randn(1, 3, 32, 32)})
    assert len(chains) == 20
    assert ["0", "1", "2"] in chains
    assert ["4.0.conv2", "4.0.bn2"] in chains
    assert ["5.0.downsample.0", "5.0.downsample.1"] in chains


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["conv", "bn", "relu", "pool"]), min_size=1, max_size=8), st.integers(0, 99))
def test_fusing_whatever_is_found_keeps_the_output(kinds: list[str], seed: int) -> None:
    makers = {
        "conv": lambda: nn.Conv2d(3, 3, 3, padding=1),
        "bn": lambda: nn.BatchNorm2d(3),
        "relu": nn.ReLU,
        "pool": lambda: nn.AvgPool2d(3, 1, 1),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = networks.one_path(*(makers[kind]() for kind in kinds))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2)
    expected = model(*IMAGES.values())
    fuse_chains(model, find_chains(trace(model, IMAGES), is_qat=False), is_qat=False)
    torch.testing.assert_close(model(*IMAGES.values()), expected, rtol=1e-3, atol=1e-4)

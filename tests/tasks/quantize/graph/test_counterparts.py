from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn.intrinsic import quantized as intrinsic
from torch.ao.nn.quantized import reference

from tasks.quantize.coverage import leaves_of
from tasks.quantize.dynamic_modules import FourBitEmbedding
from tasks.quantize.graph.convert import convert
from tasks.quantize.graph.counterparts import cover_fused, has_quantized_kernel, pair_with_float
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.graph.prepare import prepare
from tasks.quantize.methods.static import StaticRecipe
from tasks.quantize.spec import spec_of
from tests.tasks.quantize import networks

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

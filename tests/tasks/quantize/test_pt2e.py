from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from storage.errors import QuantizationError
from tasks.data.outputs import distance
from tasks.quantize import pt2e
from tasks.quantize.methods import StaticRecipe
from tasks.quantize.pt2e import quantize_exported
from tasks.quantize.source import Converted, ModelSource
from tasks.quantize.spec import Spec, spec_of

MakeSource = Callable[..., ModelSource]
_quantize = torch.ops.quantized_decomposed.quantize_per_tensor.default


def static(**keys: object) -> Spec:
    document = {"name": "s", "method": "static", "calibration_batches": 2, "calibration_batch_size": 4}
    return spec_of(StaticRecipe.model_validate(document | keys))


def quantized(source: ModelSource, **keys: object) -> Converted:
    return quantize_exported(static(**keys), source)


def left_float(result: Converted) -> dict[str, str]:
    return {leaf.module: leaf.reason for leaf in result.coverage if not leaf.quantized}


@pytest.mark.slow
def test_every_layer_is_quantized_with_the_batch_norms_folded_into_them(source_of: MakeSource) -> None:
    source = source_of()
    result = quantized(source)
    assert not left_float(result)
    types = [leaf.type for leaf in result.coverage]
    assert types.count("BatchNorm2d") == 2
    inputs = source.example_inputs.values()
    with torch.inference_mode():
        expected, found = source.float_model()(*inputs), result.model(*inputs)
    assert 0 < (found - expected).abs().max() < 0.1 * (expected.max() - expected.min())


@pytest.mark.slow
def test_excluded_modules_and_their_submodules_stay_float(source_of: MakeSource) -> None:
    source = source_of()
    leaves = [leaf for leaf in quantized(source).coverage if leaf.type == "Conv2d"]
    # The batch norm after the first convolution is folded into it, and stays float with it.
    norm = next(leaf.module for leaf in quantized(source).coverage if leaf.type == "BatchNorm2d")
    result = quantized(source, exclude=[leaves[0].module])
    assert left_float(result) == dict.fromkeys((leaves[0].module, norm), "excluded by the recipe")
    with pytest.raises(QuantizationError, match=r"`exclude` names modules .*: nose"):
        quantized(source, exclude=["nose"])


@pytest.mark.parametrize(("saturates", "highest"), [(False, 255), (True, 127)])
@pytest.mark.slow
def test_activations_keep_a_bit_free_where_products_saturate(
    source_of: MakeSource, monkeypatch: pytest.MonkeyPatch, saturates: bool, highest: int
) -> None:
    monkeypatch.setattr(pt2e, "saturates", {"onednn": saturates}.get)
    nodes = [node for node in quantized(source_of()).model.graph.nodes if node.target is _quantize]
    assert {node.args[4] for node in nodes} == {highest}


@pytest.mark.slow
def test_small_weights_and_activations_keep_their_bits(source_of: MakeSource) -> None:
    """Weights and outputs of the first layers are a thousand times smaller, and the next weights as much larger."""
    source = source_of()

    def scaled() -> nn.Module:
        model = source.float_model()
        with torch.no_grad():
            model.m0.weight /= 1000
            model.m3.weight *= 1000
        return model

    inputs, errors = source.example_inputs.values(), []
    for each in (source, replace(source, float_model=scaled)):
        with torch.inference_mode():
            expected, found = each.float_model()(*inputs), quantized(each).model(*inputs)
        errors.append(distance(found, expected))
    assert 0 < errors[1] < 2 * errors[0]  # 30 times as large if no scale is below 2**-12


@pytest.mark.slow
def test_a_recipe_that_quantizes_nothing_is_refused(source_of: MakeSource) -> None:
    source = source_of()
    names = [name for name, module in source.float_model().named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    with pytest.raises(QuantizationError, match='"s" recipe does not quantize any module in the model'):
        quantized(source, exclude=names)

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from storage.errors import UnavailableError
from tasks.environment.machine import this_machine
from tasks.quantize import engine
from tasks.quantize.methods import CastRecipe
from tasks.quantize.source import ModelSource, converter_of
from tasks.quantize.spec import spec_of

needs_bfloat16 = pytest.mark.skipif(
    not set(engine.BFLOAT16) & set(this_machine().isa), reason="this processor has no instructions for bfloat16"
)
RECIPE = CastRecipe(name="bfloat16", method="cast")


@needs_bfloat16
@pytest.mark.parametrize("memory_format", ["contiguous", "channels-last"])
@pytest.mark.slow
def test_inputs_and_outputs_stay_float32_and_close_to_the_float_models(
    source_of: Callable[..., ModelSource], memory_format: str
) -> None:
    source = source_of()
    recipe = CastRecipe.model_validate({**RECIPE.model_dump(), "memory_format": memory_format})
    spec = spec_of(recipe)
    model = converter_of(spec).convert(source.float_model(), spec, source).model
    images = source.example_inputs["images"]
    expected = source.float_model()(images)
    with torch.inference_mode():
        (found,) = model(images)
    assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    assert found.dtype == torch.float32
    assert 0 < (found - expected).abs().max() < spec_of(recipe).tolerance * (expected.max() - expected.min())


@pytest.mark.slow
def test_a_processor_without_the_instructions_is_refused(
    source_of: Callable[..., ModelSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = this_machine().model_copy(update={"isa": ("avx2",)})
    monkeypatch.setattr(engine, "this_machine", lambda: plain)
    source = source_of()
    with pytest.raises(UnavailableError, match=r"needs a processor with amx_bf16 or avx512_bf16"):
        converter_of(spec_of(RECIPE)).convert(source.float_model(), spec_of(RECIPE), source)

"""What a module carries besides its weights is computed as in the float model, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.quantize.source import Converted, ModelSource, converter_of, without_parametrizations
from tasks.quantize.spec import Spec, spec_of
from tasks.workload import Workload
from tasks.workload.recipe import METHODS
from tests.tasks.pipeline import build, job_of, opened, source_of
from tests.tasks.quantize import carrying
from tests.tasks.quantize.carrying import CARRIED, Carried
from tests.tasks.quantize.conftest import IMAGES

METHOD: dict[str, dict[str, Any]] = {
    "dynamic": {"method": "dynamic", "modules": ("LSTM", "Linear")},
    "per_row": {"method": "dynamic-per-row"},
    "static": {
        "method": "static",
        "activation_observer": "min-max",  # the other observers clip the few values of one batch
        "calibration_batches": 1,
        "calibration_batch_size": 8,
    },
}
CELLS = [
    pytest.param(case, net, method, id=f"{net}-{method}", marks=[] if method == "dynamic" else [pytest.mark.slow])
    for case in CARRIED
    for net in case.nets
    for method in METHOD
]


def spec_for(method: str, **keys: Any) -> Spec:
    document = {"name": "carrying", **METHOD[method], **keys}
    return spec_of(METHODS[document["method"]].model_validate(document))


@pytest.fixture
def convert(source_of: Callable[..., ModelSource], engine: str) -> Callable[..., Converted]:
    """Convert a network as a build does."""

    def run(net: str, spec: Spec) -> Converted:
        def model() -> nn.Module:
            torch.manual_seed(0)
            return without_parametrizations(carrying.build(net).eval())

        source = source_of()
        batch = tuple(source.example_inputs.values())
        source = replace(source, float_model=model, calibration=partial(lambda size: iter([batch])))
        return converter_of(spec).convert(model(), spec, source)

    return run


@pytest.mark.parametrize(("case", "net", "method"), CELLS)
def test_every_row_of_the_table_is_true(
    case: Carried,
    net: str,
    method: str,
    convert: Callable[..., Converted],
    source_of: Callable[..., ModelSource],
    request: pytest.FixtureRequest,
) -> None:
    if method == "per_row":
        request.getfixturevalue("operators_loaded")
    wanted = getattr(case, method)
    bits = {"embedding_bits": 8} if case.module == "embed" and method != "static" and wanted == "int8" else {}
    spec = spec_for(method, **bits)
    if wanted == "refused":
        with pytest.raises(QuantizationError, match="Rows has a forward"):
            convert(net, spec)
        return
    converted = convert(net, spec)
    torch.manual_seed(0)
    model, (images,) = carrying.build(net).eval(), source_of().example_inputs.values()
    with torch.inference_mode():
        expected, found = model(images), converted.model(images)
    assert float((found - expected).std() / expected.std()) < 0.1
    quantized = {leaf.module for leaf in converted.coverage if leaf.quantized}
    assert (case.module in quantized) == (wanted == "int8")


def test_a_parametrization_of_a_shared_weight_leaves_the_other_module_alone() -> None:
    net = carrying.Rows(carrying.share_weight)
    other = net.block[2].weight.clone()
    torch.nn.utils.parametrize.register_parametrization(net.middle, "weight", carrying.Flipped())
    without_parametrizations(net.eval())
    assert torch.equal(net.block[2].weight, other)
    assert torch.equal(net.middle.weight, -other.flip(0))


RECIPES = {
    "dynamic": {"method": "dynamic", "modules": ["Linear"], "runtimes": ["torchscript", "onnxruntime"]},
    "per-row": {"method": "dynamic-per-row", "modules": ["Linear"], "runtimes": ["eager"]},
    "static": METHOD["static"] | {"runtimes": ["onnxruntime", "openvino"]},
    "float": {"method": "none", "runtimes": ["eager", "torchscript", "onnxruntime", "openvino"]},
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("operators_loaded")
def test_exporters_and_stored_modules_keep_everything(images_store: ArtifactStore) -> None:
    model = {"kind": "factory", "factory": "tests.tasks.quantize.carrying:Everything"}
    recipes = [{"name": name, **recipe} for name, recipe in RECIPES.items()]
    workload = Workload.model_validate(IMAGES | {"model": model, "recipe": recipes})
    job, source = job_of(workload, images_store), source_of(workload, images_store)
    with torch.inference_mode():
        expected = source.float_model()(*source.example_inputs.values())
    for recipe in workload.recipe:
        for runtime in recipe.runtimes:
            candidate = build(job, recipe.name, runtime, images_store)
            found = opened(candidate, images_store)(*source.example_inputs.values())
            (outputs,) = found if isinstance(found, tuple | list) else (found,)
            apart = float((outputs - expected).std() / expected.std())
            assert apart < (1e-4 if recipe.name == "float" else 0.1), (recipe.name, runtime)

"""Architectures of different kinds, small and with random weights, in int8 on each runtime; or why not."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.quantize.engine import computes_bfloat16
from tasks.workload import Workload
from tests.tasks.domains.custom.own import own
from tests.tasks.domains.text_encoder.encoders import encoder, write_directory, write_table
from tests.tasks.pipeline import build, evaluate, job_of

pytestmark = pytest.mark.slow

RUNTIMES = ("torchscript", "onnxruntime", "openvino")
EXECUTORCH = ("executorch",) if find_spec("executorch") else ()
PICTURES = """
import torch

def pictures(size=64):
    generator = torch.Generator().manual_seed(0)
    items = [(torch.randn(3, size, size, generator=generator), index % 3) for index in range(24)]
    return {"calibration": items[:8], "test": items[8:]}

def vit(num_classes):
    from torchvision.models import VisionTransformer
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    return VisionTransformer(image_size=64, patch_size=16, num_classes=num_classes, **sizes)

def swin(num_classes):
    from torchvision.models import SwinTransformer
    sizes = {"embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": [4, 4]}
    return SwinTransformer(patch_size=[4, 4], num_classes=num_classes, **sizes)

def convnext(num_classes):
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt
    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=num_classes)

def functional_layers(num_classes):
    from tests.tasks.quantize.networks import FunctionalProducts
    return FunctionalProducts()

def group_norms(num_classes):
    from tests.tasks.quantize.networks import GroupNorms
    return GroupNorms()
"""
VISION = (
    "own_code:vit",
    "own_code:swin",
    "own_code:convnext",
    "own_code:functional_layers",
    "own_code:group_norms",
)
# What is not done, and the words that say so. Masks of padding are the lowest float32, which is infinite in bfloat16.
NOT_DONE = {("deberta-v2", "openvino"): "NaN or infinities"} if computes_bfloat16() else {}


def of_text(folder: Path, kind: str) -> Workload:
    write_directory(folder / "encoder", kind)
    write_table(folder)
    recipes = [
        {"name": "float", "method": "none"},
        {"name": "int8", "method": "dynamic", "runtimes": list(RUNTIMES)},
        *({"name": "per-row", "method": "dynamic-per-row", "runtimes": [name]} for name in EXECUTORCH),
    ]
    return encoder(folder, recipe=recipes)


def of_pictures(folder: Path, name: str) -> Workload:
    (folder / "own_code.py").write_text(PICTURES, encoding="utf-8")
    recipes = [
        {"name": "float", "method": "none"},
        {"name": "int8", "method": "static", "runtimes": [*RUNTIMES, *EXECUTORCH], "calibration_batches": 1},
    ]
    return own(
        folder,
        data={"kind": "factory", "factory": "own_code:pictures"},
        model={"kind": "factory", "factory": name, "arguments": {"num_classes": 3}},
        recipe=recipes,
    )


ENCODERS = ("bert", "deberta-v2")
ALWAYS = ("bert",)  # in `make test`


@pytest.mark.parametrize(
    "name",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in (*ENCODERS, *VISION)],
)
def test_an_architecture_becomes_int8_or_is_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    workload = of_text(tmp_path, name) if name in ENCODERS else of_pictures(tmp_path, name)
    store = ArtifactStore(tmp_path)
    job = job_of(workload, store)
    for recipe, runtime in [(each.name, runtime) for each in workload.recipe[1:] for runtime in each.runtimes]:
        why = NOT_DONE.get((name, runtime))
        if why is not None:
            with pytest.raises(NightquantError, match=why):
                evaluate(job, build(job, recipe, runtime, store), store)
            continue
        candidate = build(job, recipe, runtime, store)
        assert candidate.covered_share > 0
        assert evaluate(job, candidate, store).samples > 0

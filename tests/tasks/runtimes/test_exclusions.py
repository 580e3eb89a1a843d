"""The tools that quantize exported files leave excluded modules alone, and keep weights that several modules share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.data.outputs import distance, tensors_of
from tasks.quantize.methods import DynamicRecipe, StaticRecipe
from tasks.quantize.spec import Spec, spec_of
from tasks.runtimes import onnx_model
from tasks.runtimes.base import CandidateFiles, runtime_named
from tasks.runtimes.exported import ExportedMaker
from tasks.runtimes.onnxruntime import make as onnx_quantize
from tasks.runtimes.openvino import open as openvino_open
from tests.tasks import pipeline
from tests.tasks.runtimes.conftest import MakeJob

EXPORTED = ["onnxruntime", "openvino"]


class Sharing(nn.Module):
    """Linear layers that share weights with each other and with an embedding, for inputs of two and three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention = nn.Embedding(30, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.tower, self.alone, self.tied = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 30, bias=False)
        self.tied.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        steps = self.words(ids)
        steps = steps + self.attention(steps, steps, steps, need_weights=False)[0]
        first, last = self.tower(steps[:, 0]), self.tower(self.alone(steps[:, -1]))
        steps = self.tower(steps).sum(1)
        return torch.cat([self.tied(torch.tanh(first + steps)), F.linear(last, self.words.weight)], 1)


MODULES = {"attention", "attention.out_proj", "tower", "alone", "tied"}
IDS = torch.arange(40).reshape(8, 5) % 30


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Sharing().eval()
    path = Path(tmp_path_factory.mktemp("sharing")) / "float.onnx"
    path.write_bytes(onnx_model.export(model, {"ids": IDS}, {"ids": {0: "batch", 1: "time"}})[0].SerializeToString())
    return model, path


def source() -> Any:
    return SimpleNamespace(
        example_inputs={"ids": IDS},
        calibration_batches=lambda size: iter([(IDS,)]),
        workspace=SimpleNamespace(progress=lambda *_: None),
    )


DYNAMIC = spec_of(DynamicRecipe(name="int8", method="dynamic", modules=["Linear"]))
STATIC = spec_of(StaticRecipe(name="int8", method="static", activation_observer="min-max"))


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.parametrize("spec", [DYNAMIC, STATIC], ids=["dynamic", "static"])
@pytest.mark.parametrize("excluded", [set(), {"attention.out_proj", "tower"}], ids=["nothing", "two"])
@pytest.mark.slow
def test_the_tools_quantize_all_linear_layers_that_are_not_excluded(
    sharing: tuple[nn.Module, Path],
    tmp_path: Path,
    runtime: str,
    spec: Spec,
    excluded: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Some processors compute OpenVINO's excluded layers in bfloat16, whose rounding this network's tanh amplifies.
    in_float = partial(openvino_open._compile, INFERENCE_PRECISION_HINT="f32")
    monkeypatch.setattr(openvino_open, "_compile", in_float)
    (model, exported), maker = sharing, runtime_named(runtime).maker()
    assert isinstance(maker, ExportedMaker)
    maker.quantize(exported, tmp_path, spec, frozenset(excluded), source())
    quantized = {path for path, is_int8 in maker.products(tmp_path) if is_int8}
    assert quantized - {"", "words"} == MODULES - excluded
    opened = maker.opener().open(CandidateFiles(tmp_path, {}), 1)
    with torch.inference_mode():
        (found,), expected = tensors_of(opened(IDS)), model(IDS)
    assert distance(found, expected) < 0.05


@pytest.mark.slow
@pytest.mark.long
def test_a_tool_that_ignores_an_exclusion_is_refused(
    words: MakeJob, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize = onnx_quantize._quantize_dynamically
    monkeypatch.setattr(
        onnx_quantize, "_quantize_dynamically", lambda proto, target, spec, left_out: quantize(proto, target, spec, [])
    )
    job = words({"name": "obeys", "method": "dynamic", "runtimes": ["onnxruntime"], "exclude": ["decoder"]})
    with pytest.raises(QuantizationError, match=r"ONNX Runtime's tools quantized modules .* excludes: decoder"):
        pipeline.build(job, "obeys", "onnxruntime", store)

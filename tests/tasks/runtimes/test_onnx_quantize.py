"""Quantizing exported models with ONNX Runtime's tools, where these trip over a model's names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tasks.quantize.methods import StaticRecipe
from tasks.quantize.spec import spec_of
from tasks.runtimes.onnxruntime.make import OnnxMaker
from tasks.values.job import silent

GENERATOR = np.random.default_rng(0)
_ATTRIBUTES = {"Transpose": {"perm": [0, 1, 3, 2]}}
IMAGES = GENERATOR.standard_normal((4, 3, 6, 6)).astype(np.float32)


def with_a_shared_bias(path: Path, between: str, operator: str) -> None:
    """Write three convolutions with one bias ``bias_1``, and an activation called `between` after the first."""
    weights = [numpy_helper.from_array(_weight(), f"weight{number}") for number in range(3)]
    bias = numpy_helper.from_array(np.arange(3, dtype=np.float32) / 4, "bias_1")
    nodes = [
        helper.make_node("Conv", ["images", "weight0", "bias_1"], ["first"], "first/Conv"),
        helper.make_node(operator, ["first"], [between], "between/node", **_ATTRIBUTES.get(operator, {})),
        helper.make_node("Conv", [between, "weight1", "bias_1"], ["second"], "second/Conv"),
        helper.make_node("Conv", ["second", "weight2", "bias_1"], ["third"], "third/Conv"),
        helper.make_node("Add", ["third", between], ["outputs"], "add/Add"),
    ]
    images, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, 6, 6]) for name in ("images", "outputs")
    )
    graph = helper.make_graph(nodes, "graph", [images], [outputs], [*weights, bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _weight() -> np.ndarray[Any, np.dtype[np.float32]]:
    return GENERATOR.standard_normal((3, 3, 1, 1)).astype(np.float32)


def call(path: Path) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": IMAGES})[0]


def source() -> Any:
    def calibration(batch_size: int) -> Iterator[tuple[torch.Tensor, ...]]:
        yield (torch.from_numpy(IMAGES),)

    return SimpleNamespace(
        example_inputs={"images": torch.from_numpy(IMAGES)},
        calibration_batches=calibration,
        workspace=SimpleNamespace(progress=silent),
    )


@pytest.mark.slow
def test_a_static_quantization_writes_nothing_beside_the_exported_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, folder, written = tmp_path / "shared" / "model.onnx", tmp_path / "made", list[Path]()
    infer = onnx.shape_inference.infer_shapes_path

    def noted(model: str, output: str, **options: Any) -> None:
        infer(model, output, **options)
        written.append(Path(output).parent)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes_path", noted)
    for each in (exported.parent, folder):
        each.mkdir()
    with_a_shared_bias(exported, "between", "Tanh")
    spec = spec_of(StaticRecipe(name="int8", runtimes=("onnxruntime",), method="static"))
    OnnxMaker().quantize(exported, folder, spec, frozenset(), source())
    assert folder in written
    assert exported.parent not in written
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]


# The tools call the first copy of the bias bias_10. They then refuse what keeps its input's scale (Transpose), and
# write a wrong file with anything else.
@pytest.mark.parametrize("operator", ["Tanh", "Transpose"])
@pytest.mark.parametrize("between", ["bias_10", "between"])
@pytest.mark.slow
def test_a_bias_that_convolutions_share_does_not_take_the_place_of_an_activation(
    between: str, operator: str, tmp_path: Path
) -> None:
    with_a_shared_bias(tmp_path / "float.onnx", between, operator)
    spec = spec_of(StaticRecipe(name="int8", method="static", activation_observer="min-max"))
    OnnxMaker().quantize(tmp_path / "float.onnx", tmp_path, spec, frozenset(), source())
    expected, found = call(tmp_path / "float.onnx"), call(tmp_path / "model.onnx")
    assert np.abs(found - expected).max() < 0.05 * np.ptp(expected)

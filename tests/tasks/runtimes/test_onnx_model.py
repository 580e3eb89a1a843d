from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnxruntime import InferenceSession
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.quantize.export import export
from tasks.quantize.spec import spec_of
from tasks.runtimes import onnx_model
from tasks.runtimes.exported import module_of
from tasks.values.job import Job
from tasks.workload import Workload
from tests.tasks import pipeline
from tests.tasks.runtimes.conftest import MakeJob


def exported_from(job: Job[Workload], store: ArtifactStore) -> Path:
    spec = spec_of(job.workload.recipe_named("float"))
    return onnx_model.find_or_export(pipeline.source_of(job.workload, store), spec)


@pytest.mark.slow
def test_an_exported_lstm_is_one_operator_a_layer_with_its_state_and_free_axes(
    words: MakeJob, store: ArtifactStore
) -> None:
    folder = exported_from(words(), store)
    graph = onnx.load(folder / onnx_model.MODEL).graph
    assert [node.name.rpartition("/")[0] for node in graph.node if node.op_type == "LSTM"] == ["rnn", "rnn"]
    dimensions = {
        value.name: [dimension.dim_param or dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    assert dimensions == {"tokens": ["time", "batch"], "h": [2, "batch", 8], "c": [2, "batch", 8]}
    assert {module_of(node.name) for node in graph.node} == {"encoder", "rnn", "decoder"}


@pytest.mark.slow
def test_an_export_contains_no_path_of_this_host(words: MakeJob, store: ArtifactStore) -> None:
    folder = exported_from(words(), store)
    content = (folder / onnx_model.MODEL).read_bytes()
    assert b"/tasks/" not in content
    assert b"site-packages" not in content


AXES = {"inputs": {0: "time", 1: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}}


class Recurrent(nn.Module):
    def __init__(self, **keys: object) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 64, **keys)  # type: ignore[arg-type]

    def forward(self, inputs: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs, (h, c) = self.rnn(inputs, (h, c))
        return outputs, h, c


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_layers": 2, "bias": False},
        {"num_layers": 2, "bidirectional": True},
        {"batch_first": True},
    ],
    ids=["one layer", "no bias", "both ways", "batch first"],
)
@pytest.mark.slow
def test_an_lstm_computes_the_same_at_any_length(keys: dict[str, object]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Recurrent(**keys).eval()
        rows = model.rnn.num_layers * (2 if model.rnn.bidirectional else 1)
        examples = {"inputs": torch.randn(1, 1, 6), "h": torch.randn(rows, 1, 64), "c": torch.randn(rows, 1, 64)}
        exported = onnx_model.export(model, examples, AXES if "batch_first" not in keys else {"inputs": {1: "time"}})[0]
        session = InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
        batch = 1 if "batch_first" in keys else 3
        shape = (1, 7, 6) if "batch_first" in keys else (7, batch, 6)
        inputs = torch.randn(shape), torch.randn(rows, batch, 64), torch.randn(rows, batch, 64)
    found = session.run(None, dict(zip(examples, (each.numpy() for each in inputs), strict=True)))
    with torch.inference_mode():
        expected = model(*inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other, atol=1e-5, rtol=1e-4)


class Last(nn.Module):
    """A recurrent network of any kind, with its time axis second."""

    def __init__(self, kind: str, **keys: Any) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(6, 8, batch_first=True, **keys)

    def forward(self, steps: Tensor) -> Tensor:
        outputs: Tensor = self.rnn(steps)[0]
        return outputs[:, -1]


STEPS, STEP_AXES = {"steps": torch.arange(192.0).sin().reshape(2, 16, 6)}, {"steps": {0: "batch", 1: "time"}}


@pytest.mark.slow
def test_the_time_axis_stays_dynamic_after_an_export_with_fixed_shapes() -> None:
    onnx_model.export(Last("GRU").eval(), {"steps": STEPS["steps"].clone()}, {})
    model = Last("GRU", bidirectional=True).eval()
    exported = onnx_model.export(model, STEPS, STEP_AXES)[0]
    session = InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    steps = STEPS["steps"][:1, :7]
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(session.run(None, {"steps": steps.numpy()})[0]), model(steps))


@pytest.mark.slow
def test_an_export_to_onnx_does_not_change_a_later_export_for_a_compiler() -> None:
    model = Last("GRU").eval()
    for exports_to_onnx in (False, True):
        if exports_to_onnx:
            onnx_model.export(model, STEPS, STEP_AXES)
        with pytest.raises(QuantizationError, match="would unroll its GRU"):
            export(model, STEPS, STEP_AXES)


@pytest.mark.parametrize(
    ("kind", "keys", "reason"),
    [
        ("RNN", {}, "axes that must vary: time of steps at 16"),
        ("LSTM", {"proj_size": 4, "num_layers": 2, "bidirectional": True}, "projections"),
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_recurrent_network_that_onnx_cannot_express_is_refused(
    kind: str, keys: dict[str, object], reason: str
) -> None:
    with pytest.raises(QuantizationError, match=reason):
        onnx_model.export(Last(kind, **keys).eval(), STEPS, STEP_AXES)

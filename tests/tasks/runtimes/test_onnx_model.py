from __future__ import annotations

import onnx
import pytest

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.runtimes import onnx_model
from tests.tasks import pipeline
from tests.tasks.runtimes.conftest import MakeJob


@pytest.mark.slow
def test_an_exported_lstm_is_one_operator_a_layer_with_its_state_and_free_axes(
    words: MakeJob, store: ArtifactStore
) -> None:
    folder = onnx_model.find_or_export(pipeline.source_of(words().workload, store))
    graph = onnx.load(folder / onnx_model.MODEL).graph
    assert [node.name.rpartition("/")[0] for node in graph.node if node.op_type == "LSTM"] == ["rnn", "rnn"]
    dimensions = {
        value.name: [dimension.dim_param or dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    assert dimensions == {"tokens": ["time", "batch"], "h": [2, "batch", 8], "c": [2, "batch", 8]}
    assert {onnx_model.module_of(node.name) for node in graph.node} == {"encoder", "rnn", "decoder"}


@pytest.mark.slow
def test_an_export_holds_no_path_of_this_machine(words: MakeJob, store: ArtifactStore) -> None:
    folder = onnx_model.find_or_export(pipeline.source_of(words().workload, store))
    content = (folder / onnx_model.MODEL).read_bytes()
    assert b"/tasks/" not in content
    assert b"site-packages" not in content


@pytest.mark.slow
def test_an_equal_model_is_exported_once(words: MakeJob, store: ArtifactStore) -> None:
    source = pipeline.source_of(words().workload, store)
    assert onnx_model.find_or_export(source) == onnx_model.find_or_export(source)


@pytest.mark.slow
def test_a_model_too_large_for_one_file_is_refused(words: MakeJob, store: ArtifactStore) -> None:
    job = words(checkpoint={"kind": "seeded", "seed": 11})
    with pytest.raises(QuantizationError, match=r"would be a file of \d+\.\d GB"):
        onnx_model.find_or_export(pipeline.source_of(job.workload, store), largest_bytes=1000)


@pytest.mark.slow
def test_the_first_cause_of_wrapped_errors_is_told() -> None:
    error, cause = RuntimeError("a long story"), ValueError("\n  the cause\nmore")
    error.__cause__ = cause
    assert onnx_model.first_cause(error) == "the cause"

"""What the runtimes' own candidates are found to execute, in this process instead of a child."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from storage.artifacts import ArtifactStore
from tasks.data.outputs import intra_op_threads
from tasks.environment.machine import this_machine
from tasks.measure.benchmark.child import Limit, run_child
from tasks.measure.benchmark.messages import ChildSpec, Subject
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.measure.proof.child import doubts_about, run
from tasks.quantize.graph import prepare
from tasks.runtimes.base import runtime_named
from tasks.runtimes.eager.open import profile_torch
from tasks.values.job import Job, Workspace
from tasks.values.proofs import Operator, Proof, ProofReport, doubt_about_batches
from tasks.values.refs import CandidateRef, ModuleCoverage
from tasks.workload import Workload
from tests.tasks import pipeline
from tests.tasks.runtimes.conftest import MakeJob

pytestmark = pytest.mark.slow

STATIC = {"name": "int8", "method": "static", "calibration_batches": 1, "calibration_batch_size": 8}


def subject(job: Job[Workload], kept: ArtifactStore, candidate: CandidateRef) -> Subject:
    outputs = pipeline.evaluate(job, candidate, kept).outputs
    return BenchmarkCandidate(candidate=candidate, outputs=outputs).subject(Workspace(kept))


def prove(*subjects: Subject) -> list[Proof]:
    with intra_op_threads(1):
        report = run(ChildSpec(subjects=subjects, loader="", threads=1).model_dump_json())
    assert report.refused == {}
    return list(report.proofs.values())


def products(proof: Proof) -> list[str]:
    """What multiplies matrices in float."""
    words = ("conv", "gemm", "linear", "matmul", "addmm", "fullyconnected")
    return [each.type for each in proof.float_operators if any(word in each.type.lower() for word in words)]


@pytest.mark.parametrize("runtime", ["eager", "torchscript", "onnxruntime", "openvino"])
def test_a_static_candidate_runs_in_int8_and_a_float_one_does_not(
    images: MakeJob,
    store: ArtifactStore,
    runtime: str,
) -> None:
    job = images(STATIC | {"runtimes": [runtime]}, {"name": "plain", "method": "none", "runtimes": [runtime]})
    int8, plain = prove(
        *(subject(job, store, pipeline.build(job, recipe, runtime, store)) for recipe in ("int8", "plain"))
    )
    assert plain.int8_time_share == 0
    # Shares are of time, which a busy machine changes: what runs in float is the same on every one.
    assert products(plain)
    assert int8.int8_time_share
    assert not products(int8)
    assert int8.doubts == ()


@pytest.mark.skipif("avx2" not in this_machine().isa, reason="oneDNN has other kernels on this processor")
def test_a_candidate_made_for_vnni_that_runs_without_is_named_as_saturating(
    images: MakeJob, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "saturates", lambda engine: False)
    job = images(STATIC | {"runtimes": ["eager"], "engine": "onednn"}, network="one_sided")
    made = subject(job, store, pipeline.build(job, "int8", "eager", store))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    report = run_child(
        "tasks.measure.proof.child", ChildSpec(subjects=(made,), loader="", threads=1), ProofReport, Limit()
    )
    [found] = report.proofs.values()
    if report.unsampled:  # the system allows no sampling: then it is not known
        assert found.saturation is None
        return
    assert found.saturation is not None
    assert found.saturation > runtime_named("eager").saturation_noticed
    assert [doubt for doubt in found.doubts if doubt.startswith("products saturate: outputs are off by ")]


@pytest.mark.skipif("avx2" not in this_machine().isa, reason="the processor has no AVX2")
@pytest.mark.parametrize("runtime", ["eager", pytest.param("aot-inductor", marks=pytest.mark.long)])
def test_the_own_operators_are_proven_not_to_saturate_without_vnni(
    runtime: str, words: MakeJob, store_with_operators: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_with_operators
    job = words({"name": "rows", "method": "dynamic-per-row", "runtimes": [runtime]})
    made = subject(job, store, pipeline.build(job, "rows", runtime, store))
    monkeypatch.setenv("NIGHTQUANT_ISA", "avx2")
    report = run_child(
        "tasks.measure.proof.child", ChildSpec(subjects=(made,), loader="", threads=1), ProofReport, Limit()
    )
    [found] = report.proofs.values()
    assert found.saturation == (None if report.unsampled else 0)
    assert not [doubt for doubt in found.doubts if "saturate" in doubt]


def test_a_layer_that_fell_back_to_float_is_found(
    images: MakeJob,
    store: ArtifactStore,
    tmp_path: Path,
) -> None:
    job = images(STATIC | {"runtimes": ["onnxruntime"]})
    whole = subject(job, store, pipeline.build(job, "int8", "onnxruntime", store))
    shutil.copytree(whole.folder, tmp_path / "copy")
    model = onnx.load(tmp_path / "copy" / "model.onnx")
    fall_back(model.graph)
    onnx.save(model, tmp_path / "copy" / "model.onnx")
    [found] = prove(whole.model_copy(update={"folder": str(tmp_path / "copy")}))
    assert [doubt for doubt in found.doubts if "which counts as quantized, runs in float" in doubt]


# A graph is protocol buffers without types: Any.
def fall_back(graph: Any) -> None:
    """Let the first convolution take its input as it was before it was quantized, and its weight in float."""
    made_by = {output: node for node in graph.node for output in node.output}
    product = next(node for node in graph.node if node.op_type == "Conv")
    before = made_by[made_by[product.input[0]].input[0]]
    product.input[0] = before.input[0]


def test_without_a_disassembler_there_is_a_profile_but_no_instructions(
    images: MakeJob, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = images(STATIC | {"runtimes": ["eager"]})
    looked_at = subject(job, store, pipeline.build(job, "int8", "eager", store))
    monkeypatch.setattr("tasks.environment.machine.installed_version", lambda name: None if name == "capstone" else "1")
    with intra_op_threads(1):
        report = run(ChildSpec(subjects=(looked_at,), loader="", threads=1).model_dump_json())
    assert "capstone" in report.unsampled
    assert [proof.instructions for proof in report.proofs.values()] == [None]
    assert [proof.int8_time_share is not None for proof in report.proofs.values()] == [True]


COVERAGE = [
    ModuleCoverage(module="conv", type="Conv2d", parameters=9, quantized=True),
    ModuleCoverage(module="norm", type="LayerNorm", parameters=2, quantized=False, reason="not named"),
]
EXCLUDED = ModuleCoverage(module="fc", type="Linear", parameters=9, quantized=False, reason="it is excluded")


def int8(kind: str = "QLinearConv", name: str = "conv/node") -> Operator:
    return Operator(name=name, type=kind, arithmetic="int8", seconds=1.0)


def in_float(kind: str, name: str = "") -> Operator:
    return Operator(name=name, type=kind, arithmetic="float", seconds=1.0)


def doubts(*operators: Operator, coverage: list[ModuleCoverage] = COVERAGE) -> list[str]:
    return list(doubts_about(operators, coverage, {}, None))


def test_int8_between_float_operators_causes_no_warning() -> None:
    assert doubts(int8(), in_float("LayerNormalization", "norm/node"), in_float("Softmax")) == []


def test_a_quantized_module_that_runs_in_float_is_named() -> None:
    assert doubts(in_float("Conv", "conv/node")) == ["Conv of conv, which counts as quantized, runs in float"]


@pytest.mark.parametrize("kind", ["aten::addmm", "oneDNN convolution (jit:avx512_core)", "aten::mkldnn_rnn_layer"])
def test_a_product_without_a_name_is_one_too_many_where_no_module_stayed_float(kind: str) -> None:
    assert doubts(int8(), in_float(kind)) == [f"{kind} runs in float"]
    assert doubts(int8(), in_float(kind), coverage=[*COVERAGE, EXCLUDED]) == []


def test_an_excluded_module_that_runs_in_int8_is_reported() -> None:
    found = doubts(int8("QGemm", "fc/node"), coverage=[*COVERAGE, EXCLUDED])
    assert found == ["QGemm of fc, which counts as float, runs in int8"]


@pytest.mark.parametrize("kind", ["BatchNormalization", "aten::batch_norm", "aten::native_batch_norm"])
def test_an_activation_that_runs_separately_was_not_fused(kind: str) -> None:
    [found] = doubts(int8(), in_float(kind, "bn/node"))
    assert found.startswith(f"{kind} (bn/node) runs in float on its own")


@pytest.mark.slow
def test_saturation_is_reported_if_saturating_instructions_ran() -> None:
    assert list(doubts_about([int8()], COVERAGE, {"avx2-int8": 0.9}, 0.2, 0.02)) == [
        "products saturate: outputs are off by 20.0% of their range"
    ]
    assert not list(doubts_about([int8()], COVERAGE, {"avx2-int8": 0.9}, 0.01, 0.02))
    assert not list(doubts_about([int8()], COVERAGE, {"vnni": 0.9}, 0.2, 0.02))


def test_a_float_candidate_gets_a_warning_if_a_fifth_of_its_time_is_in_a_slow_kernel() -> None:
    slow, rest = in_float("aten::_slow_conv2d_forward"), in_float("aten::addmm")
    [doubt] = doubts(slow, *[rest] * 4, coverage=[EXCLUDED])
    assert doubt == (
        '20% of the time is aten::_slow_conv2d_forward: compare the "onnxruntime" and "aot-inductor" runtimes'
    )
    assert doubts(slow, *[rest] * 5, coverage=[EXCLUDED]) == []
    assert "20% of the time" not in "".join(doubts(int8(), slow))


@pytest.mark.skipif("avx2" not in this_machine().isa, reason="torch has other kernels on this processor")
@pytest.mark.parametrize(
    ("module", "shape", "kernel"),
    [
        (nn.Conv2d(256, 256, 3, padding=1), (1, 256, 2, 2), "aten::_slow_conv2d_forward"),
        (nn.Conv2d(256, 256, 3, padding=1), (2, 256, 2, 2), ""),
        (nn.Conv3d(64, 64, 3, padding=1), (1, 64, 4, 4, 4), "aten::slow_conv3d_forward"),
        (nn.ConvTranspose2d(256, 128, 2, 2), (1, 256, 4, 4), "aten::slow_conv_transpose2d"),
        (nn.LSTM(512, 512), (1, 1, 512), "aten::mkldnn_rnn_layer"),
    ],
)
def test_torchs_profiler_names_the_slow_kernels(module: nn.Module, shape: tuple[int, ...], kernel: str) -> None:
    with intra_op_threads(1), torch.inference_mode():
        found = doubts(*profile_torch(partial(module, torch.randn(shape)), 20), coverage=[EXCLUDED])
    assert [doubt.partition("is ")[2].partition(": ")[0] for doubt in found] == [kernel] * bool(kernel)


def test_rows_that_depend_on_each_other_are_reported() -> None:
    assert doubt_about_batches(None) == doubt_about_batches(2e-7) == ""
    assert "by up to 1.2% of their range" in doubt_about_batches(0.012)

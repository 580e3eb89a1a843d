import json
from datetime import UTC, date, datetime

import pytest

from flows.request import BUILT_IN
from storage.results.tables import LAYERS, MEASUREMENTS
from storage.results.writer import validated
from tasks.decide.rows import layer_rows, measurement_rows
from tasks.environment.machine import observe
from tasks.values.job import Job
from tasks.values.proofs import Proof
from tasks.values.refs import ArtifactRef, CandidateRef, CheckpointRef, DatasetRef, ModuleCoverage
from tasks.values.results import (
    BenchmarkResult,
    CandidateResult,
    Comparison,
    CurrentBundle,
    Evaluation,
    Failure,
    LayerSensitivity,
    RunInfo,
    ServedCapacity,
    Timing,
    WorkloadResult,
)
from tasks.workload import read_workload
from tasks.workload.gate import Gate
from tasks.workload.rules import rules_on

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
RUN = RunInfo(run_id="20261121-abc", night=date(2026, 11, 21), profile="quick")
EVIDENCE = observe(1)
WORKLOAD = read_workload(BUILT_IN / "lstm-demo.toml")


def _candidate(recipe="float", runtime="eager", size=1000, quality=0.0, **other):
    return CandidateResult(
        recipe=recipe,
        runtime=runtime,
        built=CandidateRef(
            kind="candidate",
            digest="d" * 64,
            recipe=recipe,
            runtime=runtime,
            size_bytes=size if runtime == "eager" else 2 * size,
            recipe_digest="r" * 64,
            source_digest="5" * 64,
            coverage=(
                ModuleCoverage(module="lstm", type="LSTM", parameters=75, quantized=True),
                ModuleCoverage(module="head", type="Linear", parameters=25, quantized=False, reason="excluded"),
            ),
        ),
        evaluation=Evaluation(
            recipe=recipe,
            runtime=runtime,
            quality_metric="difference_percent",
            quality=quality,
            higher_is_better=False,
            metrics={"mean_absolute_output": 0.1},
            quality_batched=quality + 0.25,
            samples=160,
            outputs=ArtifactRef(kind="outputs", digest="e" * 64),
        ),
        comparison=Comparison(quality_difference=quality),
        **other,
    )


def _timing(recipe="float", runtime="eager", setting="primary", batch_size=1, speedup=1.0):
    return Timing(
        recipe=recipe,
        runtime=runtime,
        setting=setting,
        threads=1,
        batch_size=batch_size,
        latency_s=2e-4 / speedup,
        latency_q25_s=1e-4,
        latency_q75_s=3e-4,
        baseline_latency_s=2e-4,
        speedup=speedup,
        speedup_low=speedup * 0.9,
        speedup_high=speedup * 1.1,
        cold_latency_s=4e-4 / speedup,
        cold_baseline_latency_s=4e-4,
        cold_speedup=speedup / 2,
        cold_speedup_low=speedup * 0.4,
        cold_speedup_high=speedup * 0.6,
        launches=2,
        blocks=2,
        calls_per_block=100,
        load_s=0.1,
        first_call_s=0.01,
        block_launch=(0, 1),
        block_round=(0, 0),
        block_s=(1e-4, 1e-4),
    )


def _benchmark(*timings, verdict="valid"):
    return BenchmarkResult(
        verdict=verdict,
        aa_ratio=1.0,
        aa_low=0.99,
        aa_high=1.01,
        cold_aa_ratio=1.0,
        cold_aa_low=0.9,
        cold_aa_high=1.1,
        fingerprint="f" * 64,
        timings=timings,
        evidence_before=EVIDENCE.model_dump_json(),
        evidence_after="{}",
    )


def _result(*candidates, **other):
    dataset = DatasetRef(kind="sequence", digest="a" * 64, splits={"test": 20})
    checkpoint = CheckpointRef(kind="checkpoint", digest="c" * 64, parameters=100)
    return WorkloadResult(
        workload=WORKLOAD,
        dataset=dataset,
        job=Job(workload=WORKLOAD, dataset=dataset, checkpoint=checkpoint),
        candidates=candidates,
        **other,
    )


def test_rows_conform_to_the_measurements_table():
    result = _result(
        _candidate(),
        _candidate("dynamic-int8", size=250, quality=1.5),
        benchmark=_benchmark(_timing(), _timing("dynamic-int8", speedup=2.0)),
    )
    rows = measurement_rows(RUN, result, NOW)
    assert validated(MEASUREMENTS, rows, RUN.run_id)[0].num_rows == 2
    int8 = rows[1]
    assert (int8["size_ratio"], int8["baseline_size_bytes"]) == (4.0, 1000)
    assert (int8["quality_difference"], int8["baseline_quality"]) == (1.5, 0.0)
    assert (int8["quality"], int8["quality_batched"]) == (1.5, 1.75)
    assert (int8["speedup"], int8["verdict"], int8["is_baseline"]) == (2.0, "valid", False)
    assert int8["coverage"] == 0.75
    assert int8["block_s"] == (1e-4, 1e-4)
    assert (int8["cold_speedup"], int8["cold_aa_low"]) == (1.0, 0.9)
    assert {row["caches"] for row in rows} == {"warm"}
    assert (int8["recipe_digest"], int8["source_digest"]) == ("r" * 64, "5" * 64)
    assert (int8["machine"], int8["environment"]) == (EVIDENCE.machine.digest, EVIDENCE.machine.environment)
    assert rows[0]["is_baseline"]


def test_a_failed_candidate_is_one_row_with_its_stage_and_error():
    failed = CandidateResult(
        recipe="dynamic-int8", runtime="eager", failure=Failure(stage="quantize", error="no kernel")
    )
    skipped = failed.model_copy(
        update={"runtime": "openvino", "failure": Failure(stage="build", error="not installed", skipped=True)}
    )
    rows = measurement_rows(RUN, _result(_candidate(), failed, skipped, benchmark=_benchmark(_timing())), NOW)
    assert validated(MEASUREMENTS, rows, RUN.run_id)[0].num_rows == 3
    assert (rows[1]["status"], rows[1]["stage"], rows[1]["error"]) == ("failed", "quantize", "no kernel")
    assert (rows[2]["status"], rows[2]["error"]) == ("skipped", "not installed")
    assert rows[1]["verdict"] == "not-measured"
    assert "speedup" not in rows[1]


def test_the_current_bundle_is_a_row_of_its_own_unless_it_is_one_of_tonights():
    deployed = _candidate("dynamic-int8", quality=1.5)
    current = CurrentBundle(version="2026-11-20-0123456789ab", candidate=deployed.built, made_as="e" * 64)
    timings = [_timing("dynamic-int8", speedup=2.0), _timing("dynamic-int8", setting="current", speedup=3.0)]
    benchmark = _benchmark(_timing(), *timings)
    candidates = _candidate(), _candidate("dynamic-int8", quality=1.6)
    result = _result(*candidates, benchmark=benchmark, current=current, bundle=deployed)
    rows = measurement_rows(RUN, result, NOW)
    assert validated(MEASUREMENTS, rows, RUN.run_id)[0].num_rows == 3
    assert [(row["recipe"], row["setting"], row["speedup"], row["quality"]) for row in rows[1:]] == [
        ("dynamic-int8", "primary", 2.0, 1.6),
        ("dynamic-int8", "current", 3.0, 1.5),
    ]
    assert rows[2]["artifact_digest"] == "e" * 64
    same = current.model_copy(update={"same_as": deployed.name})
    assert len(measurement_rows(RUN, _result(*candidates, benchmark=benchmark, current=same), NOW)) == 2


def test_a_current_bundle_that_failed_is_reported():
    deployed = _candidate("gone")
    failed = deployed.model_copy(update={"failure": Failure(stage="evaluate", error="no such operator")})
    current = CurrentBundle(version="2026-11-20-0123456789ab", candidate=deployed.built, coverage=0.75)
    rows = measurement_rows(RUN, _result(_candidate(), current=current, bundle=failed), NOW)
    assert validated(MEASUREMENTS, rows, RUN.run_id)[0].num_rows == 2
    assert (rows[1]["setting"], rows[1]["status"], rows[1]["error"]) == ("current", "failed", "no such operator")
    assert (rows[1]["method"], rows[1]["coverage"]) == (None, 0.75)


def test_without_the_baselines_result_there_is_no_ratio():
    failed = CandidateResult(recipe="float", runtime="eager", failure=Failure(stage="checkpoint", error="gone"))
    row = measurement_rows(RUN, _result(failed, _candidate("dynamic-int8")), NOW)[1]
    assert row["size_bytes"] == 1000
    assert row["size_ratio"] is None
    assert row["baseline_quality"] is None


@pytest.mark.slow
def test_layers_have_one_row_a_module_of_each_candidate():
    result = _result(
        _candidate("dynamic-int8", "eager"),
        _candidate("dynamic-int8", "torchscript"),
        sensitivities=(LayerSensitivity(recipe="dynamic-int8", module="lstm", type="LSTM", sqnr_db=30.0, rank=1),),
    )
    rows = layer_rows(RUN, result)
    assert validated(LAYERS, rows, RUN.run_id)[0].num_rows == 4
    assert [row["runtime"] for row in rows] == ["eager", "eager", "torchscript", "torchscript"]
    assert [row.get("sqnr_db") for row in rows] == [30.0, None, 30.0, None]
    assert (rows[1]["quantized"], rows[1]["reason"]) == (False, "excluded")


@pytest.mark.parametrize(("difference", "is_known"), [(12.36, True), (float("nan"), False), (float("inf"), False)])
@pytest.mark.slow
def test_an_invalid_number_affects_no_other_value_and_the_gate_reads_the_recorded_row(difference, is_known):
    odd = _candidate("dynamic-int8", quality=1.5)
    evaluation = odd.evaluation.model_copy(update={"batch_difference": difference})
    proofs = {"dynamic-int8/eager": Proof(int8_time_share=0.5, saturation=2.5)}
    benchmark = _benchmark(_timing(), _timing("dynamic-int8", speedup=2.0)).model_copy(update={"proofs": proofs})
    candidates = _candidate(), odd.model_copy(update={"evaluation": evaluation})
    rows = measurement_rows(RUN, _result(*candidates, benchmark=benchmark), NOW)
    assert validated(MEASUREMENTS, rows, RUN.run_id)[0].num_rows == 2
    row = rows[1]
    assert (row["speedup"], row["saturation"]) == (2.0, 2.5)
    assert row["batch_difference"] == (difference if is_known else None)
    assert ("unknown" in row) is not is_known
    [rule] = rules_on(Gate(require_batch_invariance=True), row)
    assert (rule.outcome, rule.seen) == (("failed", difference) if is_known else ("held", None))
    # A difference that is unknown is no doubt.
    assert len(json.loads(row["doubts"])) == is_known


@pytest.mark.parametrize("is_proven", [True, False])
def test_a_candidate_that_is_absurdly_slow_is_noted(is_proven):
    proofs = {"dynamic-int8/eager": Proof(int8_time_share=1.0)} if is_proven else {}
    for speedup, noted in ((0.004, ["a call takes 250 times as long as the baseline's"]), (0.3, [])):
        benchmark = _benchmark(_timing(), _timing("dynamic-int8", speedup=speedup)).model_copy(
            update={"proofs": proofs}
        )
        rows = measurement_rows(RUN, _result(_candidate(), _candidate("dynamic-int8"), benchmark=benchmark), NOW)
        assert json.loads(rows[1].get("doubts") or "[]") == noted


def test_deviations_of_a_tool_from_the_recipe_are_noted():
    candidate = _candidate("dynamic-int8")
    built = candidate.built.model_copy(update={"notes": ("one scale",)})
    result = _result(
        _candidate(),
        candidate.model_copy(update={"built": built}),
        benchmark=_benchmark(_timing(), _timing("dynamic-int8")),
    )
    assert json.loads(measurement_rows(RUN, result, NOW)[1]["doubts"]) == ["one scale"]


def test_missing_facts_about_a_candidate_are_unknown_in_its_row():
    why = {
        "peak_rss_bytes": "The memory process was killed by SIGKILL.",
        "int8_time_share": "It was killed by SIGSEGV.",
    }
    timings = _timing(), _timing("dynamic-int8")
    deployed = _candidate("dynamic-int8")
    current = CurrentBundle(version="2026-11-20-0123456789ab", candidate=deployed.built)
    benchmark = _benchmark(*timings, _timing("dynamic-int8", setting="current")).model_copy(
        update={"unknown": {"dynamic-int8/eager": why, "dynamic-int8/eager#current": {"saturation": "The same."}}}
    )
    result = _result(_candidate(), deployed, benchmark=benchmark, current=current, bundle=deployed.model_copy())
    rows = {(row["recipe"], row["setting"]): row.get("unknown") for row in measurement_rows(RUN, result, NOW)}
    assert rows == {
        ("float", "primary"): None,
        ("dynamic-int8", "primary"): why,
        ("dynamic-int8", "current"): {"saturation": "The same."},
    }


def test_a_capacity_is_in_its_subjects_row_for_the_primary_setting():
    served = ServedCapacity(
        capacity_scenario="offline",
        capacity_rps=1e3,
        capacity_ratio=1.5,
        capacity_ratio_low=1.4,
        capacity_ratio_high=1.6,
        capacity_split="2 processes × 1 thread, batch 1",
    )
    timings = _timing(), _timing(setting="a/a"), _timing("dynamic-int8"), _timing("dynamic-int8", setting="current")
    deployed = _candidate("dynamic-int8")
    current = CurrentBundle(version="2026-11-20-0123456789ab", candidate=deployed.built)
    bundle = served.model_copy(update={"capacity_rps": 2e3})
    benchmark = _benchmark(*timings).model_copy(
        update={"capacities": {"float/eager": served, "dynamic-int8/eager#current": bundle}}
    )
    result = _result(_candidate(), deployed, benchmark=benchmark, current=current, bundle=deployed.model_copy())
    rows = measurement_rows(RUN, result, NOW)
    assert {(row["recipe"], row["setting"]): row.get("capacity_rps") for row in rows} == {
        ("float", "primary"): 1e3,
        ("float", "a/a"): None,
        ("dynamic-int8", "primary"): None,
        ("dynamic-int8", "current"): 2e3,
    }
    assert rows[0]["capacity_limit"] is None

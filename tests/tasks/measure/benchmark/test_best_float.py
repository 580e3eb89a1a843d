"""What int8 gains over the float candidate of its runtime and over the fastest one, on subjects of known work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.decide.gate import Judgement, judge
from tasks.measure.benchmark.contest import Contest, Measured
from tasks.measure.benchmark.diagnostics import timings_of
from tasks.measure.benchmark.protocol import Session
from tasks.workload.recipe import CandidateName
from tests.tasks.decide.test_gate import row, workload
from tests.tasks.measure.benchmark.planted import LOADER, TINY, plan

BASELINE = "float/eager"
PROFILE = TINY.model_copy(update={"budget_s": 600})
SESSION = Session(CandidateName.parse(BASELINE), PROFILE, loader=LOADER)


def measure(folder: Path, contest: Contest, launches: int = 3, **works: int) -> Measured:
    session = replace(SESSION, profile=PROFILE.model_copy(update={"launches": launches}))
    names = {name.replace("_", "/"): work for name, work in works.items()}
    return session.measure([plan(folder, name, work=work, simulated=True) for name, work in names.items()], contest)


@pytest.mark.slow
def test_the_gains_of_runtime_and_int8_multiply_to_the_speedup(tmp_path: Path) -> None:
    contest = Contest(
        contenders=frozenset({"int8/openvino", "int8/eager"}),
        min_speedup=1.05,
        twins={"int8/openvino": "float/openvino", "int8/eager": BASELINE},
        floats=frozenset({"float/openvino", "float/onnxruntime"}),
        min_over_best_float=1.0,
    )
    works = {
        "float_eager": 300,
        "float_openvino": 100,
        "float_onnxruntime": 180,
        "int8_openvino": 40,
        "int8_eager": 200,
    }
    measured = measure(tmp_path, contest, **works)
    for name in contest.contenders:
        factors = measured.gains(name)
        assert factors is not None
        runtime, int8 = factors
        assert runtime.value * int8.value == pytest.approx(measured.ratio(name).value)
        true = works[contest.twins[name].replace("/", "_")] / works[name.replace("/", "_")]
        assert int8.low <= true <= int8.high
    # The slower float leaves the launches; the faster one stays, because it is a twin and the best float.
    assert [len(measured.of(name)) for name in ("float/openvino", "float/onnxruntime")] == [3, 2]
    assert measured.best_float() == "float/openvino"
    slow, fast = (measured.over_best_float(name) for name in ("int8/eager", "int8/openvino"))
    assert slow is not None
    assert fast is not None
    assert slow.high < 1 < fast.low
    assert contest.is_decided(measured)


def judged(folder: Path, int8: int) -> Judgement:
    """Judge int8 in torchscript, whose own float takes 300, where a float file of another runtime takes 100."""
    names = {"float/eager": 450, "float/torchscript": 300, "float/openvino": 100, "int8/torchscript": int8}
    contest = Contest(
        contenders=frozenset({"int8/torchscript"}),
        min_speedup=1.05,
        fastest_wins=True,
        twins={"int8/torchscript": "float/torchscript"},
        floats=frozenset({"float/torchscript", "float/openvino"}),
        min_over_best_float=1.0,
    )
    # An int8 candidate that is too slow leaves after three launches. The fourth must still time the floats.
    measured = measure(folder, contest, 4, **{name.replace("/", "_"): work for name, work in names.items()})
    rows: list[dict[str, Any]] = []
    for timing in timings_of(measured, 1, {}):
        method = {"float": "none", "int8": "dynamic"}[timing.recipe]
        if timing.setting == "primary":
            rows.append(row(f"{timing.recipe}/{timing.runtime}", method=method) | timing.model_dump(exclude_none=True))
    return judge(workload(min_speedup=1.05, min_size_ratio=2.0), [r for r in rows if r["runtime"] != "openvino"], None)


@pytest.mark.slow
def test_int8_that_only_beats_a_slow_baseline_is_rejected_and_int8_that_beats_every_float_is_promoted(
    tmp_path: Path,
) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "fast").mkdir()
    slow, fast = judged(tmp_path / "slow", 200), judged(tmp_path / "fast", 50)
    (rejected,) = [one for one in slow.decisions if one.recipe == "int8"]
    assert rejected.decision == "reject"
    assert rejected.reason.startswith("min_over_best_float requires 1, but the measured value is 0.")
    assert "float/openvino is the fastest float candidate" in rejected.reason
    assert fast.promoted is not None
    assert str(fast.promoted.name) == "int8/torchscript"

"""Each of the doctor's checks, on machines as they are and as they might be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.environment.machine import Evidence, Pressure, observe, this_machine
from tasks.measure import doctor
from tasks.measure.benchmark.statistics import Ratio


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return observe(1)


def test_a_slow_kernel_old_processor_or_changing_frequency_is_noted_but_does_not_spoil_trust(
    evidence: Evidence, tmp_path: Path
) -> None:
    old, slow = evidence.machine.model_copy(update={"isa": ("avx2",)}), Ratio(0.9, 0.8, 1.1)
    notes = [
        doctor.check_int8(old),
        doctor.check_ratio(slow),
        doctor.check_repeatable(Ratio(1.0, 0.94, 1.01)),
        doctor.check_governor(evidence.model_copy(update={"governor": "powersave"})),
    ]
    assert [check.status for check in notes] == ["note"] * 4
    good = [
        doctor.check_int8(old.model_copy(update={"isa": ("avx512_vnni",)})),
        doctor.check_ratio(Ratio(3.0, 2.5, 3.5)),
        doctor.check_repeatable(Ratio(1.0, 0.99, 1.01)),
        doctor.check_governor(evidence.model_copy(update={"governor": None})),
        doctor.check_store("s3://bucket/place"),
    ]
    assert [check.status for check in good] == ["ok"] * 5
    assert doctor.check_store(str(tmp_path / "a" / "b")).status in ("ok", "note")


def test_other_work_is_noticed_by_load_or_by_pressure(evidence: Evidence) -> None:
    calm = evidence.model_copy(update={"load_average": (0.0, 0.0, 0.0), "pressure": {}})
    assert doctor.check_busy(calm).status == "ok"
    loaded = (2.0 * evidence.machine.processors, 0.0, 0.0)
    assert doctor.check_busy(calm.model_copy(update={"load_average": loaded})).status == "note"
    waiting = {"cpu": Pressure(some_avg10=50.0, some_total_us=1)}
    assert doctor.check_busy(calm.model_copy(update={"pressure": waiting})).status == "note"


def test_stolen_time_is_a_share_of_all_processors(evidence: Evidence) -> None:
    before = evidence.model_copy(update={"steal_s": 10.0, "at_s": 100.0})
    stolen = 0.5 * evidence.machine.processors
    after = before.model_copy(update={"steal_s": 10.0 + stolen, "at_s": 101.0})
    check = doctor.check_steal(before, after)
    assert check.status == "note"
    assert check.found.startswith("50.0%")
    assert doctor.check_steal(before, before.model_copy(update={"at_s": 101.0})).status == "ok"
    assert doctor.check_steal(before.model_copy(update={"steal_s": None}), after).status == "ok"


def test_store_below_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = doctor.check_store(str(tmp_path / "file"))
    assert check.status == "problem"
    assert "--store" in check.advice


def test_a_compiler_is_looked_for_where_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env g++")
    assert doctor.check_compiler().status == "ok"
    monkeypatch.setenv("CXX", "no-such-compiler")
    check = doctor.check_compiler()
    assert check.status == "note"
    assert check.found == "no no-such-compiler"
    assert "apt install g++" in check.advice


def test_without_torch_the_doctor_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checks = {check.name: check for check in doctor.examine(str(tmp_path))}
    assert checks["A/A"].status == "problem"
    assert "no torch here" in checks["A/A"].found
    assert "Reinstall torch" in checks["A/A"].advice
    assert this_machine().cpu in checks["machine"].found

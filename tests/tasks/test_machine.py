"""Evidence of the machine, and the fingerprint of what is constant about it."""

from __future__ import annotations

import subprocess
import sys

from tasks.benchmark.process import choose_processors
from tasks.machine import Evidence, fingerprint, observe, this_machine


def test_evidence_names_what_a_sceptic_asks_for() -> None:
    evidence = observe("before", 2, ("x86",))
    assert evidence.machine.cpu
    assert evidence.machine.libraries["torch"]
    assert evidence.threads == 2
    assert evidence.engines == ("x86",)
    assert evidence.available_memory_bytes > 0
    assert len(evidence.load_average) == 3


def test_evidence_survives_json() -> None:
    evidence = observe("after", 1, ())
    assert Evidence.model_validate_json(evidence.model_dump_json()) == evidence


def test_fingerprint_is_the_same_in_another_process_and_needs_no_torch() -> None:
    code = "import sys; from tasks.machine import fingerprint; print(fingerprint(), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [fingerprint(), "False"]


def test_vnni_is_told_from_the_instruction_set() -> None:
    machine = this_machine()
    assert machine.model_copy(update={"isa": ("avx2", "avx512_vnni")}).has_vnni
    assert not machine.model_copy(update={"isa": ("avx2", "avx512f")}).has_vnni


def test_processors_are_the_highest_numbered_and_no_more_than_asked_for() -> None:
    assert choose_processors(1, [1000, 1001, 1002]) == (1002,)
    assert choose_processors(2, [1000, 1001, 1002]) == (1001, 1002)
    assert choose_processors(5, [1000, 1001]) == (1000, 1001)

"""Evidence of the machine, and what of it is hardware and what environment."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from tasks.environment.machine import Evidence, fingerprint, observe, this_machine


def test_evidence_describes_the_host_its_threads_and_its_load() -> None:
    evidence = observe(2)
    assert evidence.machine.cpu
    assert evidence.machine.libraries["torch"]
    assert evidence.threads == 2
    assert len(evidence.load_average) == 3
    assert evidence.host == platform.node()
    assert Evidence.model_validate_json(evidence.model_dump_json()) == evidence


def test_fingerprint_is_the_same_in_another_process_and_needs_no_torch() -> None:
    code = "import sys; from tasks.environment.machine import fingerprint; print(fingerprint(), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [fingerprint(), "False"]


def test_an_upgrade_is_another_environment_on_the_same_machine() -> None:
    machine = this_machine()
    upgraded = machine.model_copy(update={"system": "Linux 99", "libraries": machine.libraries | {"torch": "99.0"}})
    assert upgraded.digest == machine.digest
    assert upgraded.fingerprint != machine.fingerprint
    before, after = json.loads(machine.environment), json.loads(upgraded.environment)
    assert {name for name in after if after[name] != before[name]} == {"kernel", "torch"}


@pytest.mark.parametrize(
    "change",
    [{"cpu": "Z80"}, {"isa": ()}, {"processors": 99}, {"memory_bytes": 2**40}, {"product": "another cloud's"}],
)
def test_other_hardware_is_another_machine_in_the_same_environment(change: dict[str, object]) -> None:
    other = this_machine().model_copy(update=change)
    assert other.digest != this_machine().digest
    assert other.environment == this_machine().environment

"""A command on a processor with fewer instruction sets."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.machine import this_machine


def can_hide() -> bool:
    """Whether CPUID can be intercepted and a mount namespace can be made here."""
    if "cpuid_fault" not in Path("/proc/cpuinfo").read_text(encoding="utf-8") or not shutil.which("cc"):
        return False
    return subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif("avx512" not in " ".join(this_machine().isa) or not can_hide(), reason="nothing can be hidden here")
def test_libraries_choose_the_kernels_of_the_lesser_processor() -> None:
    program = (
        "import torch; from tasks.machine import this_machine;"
        "print(torch.backends.cpu.get_cpu_capability(), *this_machine().isa)"
    )
    command = [sys.executable, "-m", "benchmarks.processor", "avx2", "--", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    capability, *names = done.stdout.split()
    assert (capability, "avx2" in names) == ("AVX2", True)
    assert not [name for name in names if any(hidden in name for hidden in ("avx512", "vnni", "amx"))]

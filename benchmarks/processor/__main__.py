"""Run a command as a processor with fewer instruction sets would run it.

A library selects its kernels by the instruction CPUID, and some read ``/proc/cpuinfo``. This program hides instruction
sets from both, for the command and for every process that it starts, so that each library of a benchmark selects the
kernels that it would select on a lesser processor::

    python -m benchmarks.processor avx2 -- python -m benchmarks.int8_lstm --isa avx2 --no-loss

The kernels are those of the lesser processor; clock rates, caches and execution ports remain those of this one. A ratio
of two subjects carries over only as far as these affect both alike.

Linux on an Intel processor with CPUID faulting (``cpuid_fault`` in ``/proc/cpuinfo``), a C compiler, and the right to
make a mount namespace are needed. The mechanism is described in the manual page arch_prctl(2), ``ARCH_SET_CPUID``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("hide.c")
LEVELS = {"avx512-vnni": 1, "avx512": 2, "avx2": 3}
# What each level hides from /proc/cpuinfo, in addition to the levels before it.
FLAGS = (r"amx_\w+", r"avx512_(vnni|fp16|bf16|bitalg|vpopcntdq)|avx_vnni\w*", r"avx512\w*")


def main() -> int:
    """Compile the library that answers CPUID, hide the names in a mount namespace, and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("isa", choices=LEVELS, help="the best instruction set that remains visible")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = [word for word in arguments.command if word != "--"]
    names = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    if "cpuid_fault" not in names:
        sys.exit("This processor cannot intercept CPUID (no cpuid_fault in /proc/cpuinfo); use another machine.")
    if not command:
        sys.exit("Give the command to run, after --.")
    hidden = "|".join(FLAGS[: LEVELS[arguments.isa]])
    with tempfile.TemporaryDirectory() as folder:
        library, shown = Path(folder, "hide.so"), Path(folder, "cpuinfo")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(library)], check=True)
        shown.write_text(re.sub(rf"\b({hidden})(?=\s)", "", names), encoding="utf-8")
        script = 'mount --bind "$0" /proc/cpuinfo && export LD_PRELOAD="$1" && shift && exec "$@"'
        alone = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.getuid() else [])]
        environment = os.environ | {"HIDDEN_LEVEL": str(LEVELS[arguments.isa])}
        return subprocess.run([*alone, "sh", "-c", script, shown, library, *command], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())

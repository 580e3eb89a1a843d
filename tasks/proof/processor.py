"""Running a process as on a lesser processor: `processor.c`, compiled on first use and preloaded, answers CPUID for it.

Switches of the libraries' own would not do: ONNX Runtime has none, FBGEMM's are not torch's, and none says whether it
was heard.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

from storage.artifacts import artifact_digest
from storage.digest import file_digest
from storage.errors import UnavailableError
from tasks.compiler import compiler_version, find_compiler, run_compiler
from tasks.job import Workspace

KIND = "processor"

_SOURCE = Path(__file__).with_name("processor.c")
_LIBRARY = "processor.so"
_VARIABLE, _SYMBOL = "NIGHTQUANT_PROCESSOR", "nightquant_processor"
_FLAGS = ("-x", "c", "-O2", "-fPIC", "-shared")
_PURPOSE = "answering for the processor needs"
# By name, from the better one: the instruction sets, as /proc/cpuinfo has them, that it lacks.
_AMX = ("amx_tile", "amx_int8", "amx_bf16", "amx_fp16")
LESSER: dict[str, tuple[str, ...]] = {
    "avx512_vnni": _AMX,
    "avx2": (
        *_AMX, "avx512f", "avx512dq", "avx512ifma", "avx512cd", "avx512bw", "avx512vl", "avx512vbmi", "avx512_vbmi2",
        "avx512_vnni", "avx512_bitalg", "avx512_vpopcntdq", "avx512_bf16", "avx512_fp16", "avx_vnni",
    ),
}  # fmt: skip


def lesser_processors(required: Collection[str] = ()) -> list[str]:
    """Names of the lesser processors that have `required` instruction sets and are not this one, the best first."""
    here = _instruction_sets()
    return [name for name, lacks in LESSER.items() if here & set(lacks) and not set(lacks) & set(required)]


def environment_of(processor: str, workspace: Workspace) -> dict[str, str]:
    """The environment variables that make a process run as on a lesser processor.

    Raises
    ------
    UnavailableError
        This processor answers CPUID itself only, this is not Linux on x86-64, or there is no compiler.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnavailableError("Lesser processors can be tried on Linux on x86-64 only.")
    if "cpuid_fault" not in _instruction_sets():
        raise UnavailableError("Lesser processors cannot be tried here: this one has no CPUID faulting (cpuid_fault).")
    variables = {"LD_PRELOAD": str(_find_or_compile(workspace).absolute()), _VARIABLE: processor}
    _refuse_deaf(variables)
    return variables


@cache
def _instruction_sets() -> frozenset[str]:
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].split())
    except OSError:
        return frozenset()


def _find_or_compile(workspace: Workspace) -> Path:
    compiler, store = find_compiler(_PURPOSE), workspace.store
    made_from: dict[str, object] = {
        "source": file_digest(_SOURCE),
        "flags": list(_FLAGS),
        "compiler": compiler_version(compiler),
    }
    digest = artifact_digest(KIND, made_from)
    if store.find(KIND, digest) is None:
        with workspace.alone(digest):
            if store.find(KIND, digest) is None:
                with store.create(KIND, digest, made_from) as folder:
                    command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(folder / _LIBRARY)]
                    run_compiler(command, folder, "cannot compile what answers for the processor")
    return store.path(KIND, digest) / _LIBRARY


def _refuse_deaf(variables: dict[str, str]) -> None:
    """Start a process so, which looks whether the library is there: the dynamic loader goes on without it."""
    look = f"import ctypes; assert ctypes.c_void_p.in_dll(ctypes.CDLL(None), '{_SYMBOL}').value, 'it was not heard'"
    done = subprocess.run(
        [sys.executable, "-S", "-c", look], env=variables, capture_output=True, text=True, check=False
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UnavailableError(f"Lesser processors cannot be tried here: {why}.")

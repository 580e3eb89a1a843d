"""Determine the instruction sets that the compiler may use."""

from __future__ import annotations

import shlex
import subprocess
from functools import cache
from pathlib import Path

from storage.errors import UnavailableError
from tasks.libraries import quiet
from tasks.quantize.spec import Spec

with quiet():
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.exc import InvalidCxxCompiler


def instructions_for(spec: Spec) -> list[str]:
    """Return the instruction sets that a compiled model may use; static int8 models use VNNI if it is available.

    With VNNI, activations use all 8 bits; their products would saturate on a processor without VNNI.
    """
    words = processor()
    vnni = [name for name in ("avx512_vnni", "avx_vnni") if name in words][:1]
    return list(dict.fromkeys([*target()[0], *(vnni if "static" in spec.activations else [])]))


@cache
def target() -> tuple[tuple[str, ...], str]:
    """Return the instruction sets for which Inductor compiles on this host, and the compiler's version."""
    try:
        compiler = get_cpp_compiler()
        version = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True, check=True)
    except (InvalidCxxCompiler, OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(
            'The "aot-inductor" runtime needs a C++ compiler, but none was found.',
            hint="Install a compiler, for example with apt install g++, or set the environment variable CXX.",
        ) from error
    with quiet():
        flags = pick_vec_isa().build_arch_flags().split()
    # The compiler flags ``-mavx512vnni`` and ``-mamx-tile`` correspond to Linux's ``avx512_vnni`` and ``amx_tile``.
    names = {f"-m{word.replace('_', '')}": word for word in processor()}
    needed = (names.get(f"-m{flag[2:].replace('-', '')}", "") for flag in flags)
    return tuple(dict.fromkeys(filter(None, needed))), version.stdout.splitlines()[0]


def processor() -> frozenset[str]:
    """Return every word of ``/proc/cpuinfo``, including the names of the processor's instruction sets."""
    return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())

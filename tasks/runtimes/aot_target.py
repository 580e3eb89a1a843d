"""Determine the instruction sets that the compiler may use, and the folder in which it compiles."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from storage.errors import UnavailableError
from storage.root import cache_base
from tasks.libraries import quiet
from tasks.quantize.spec import Spec

with quiet():
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.exc import InvalidCxxCompiler

_CACHE, TEMPORARY = "TORCHINDUCTOR_CACHE_DIR", "nightquant-inductor-"


def instructions_for(spec: Spec) -> list[str]:
    """Return the instruction sets that a compiled model may use; static int8 models use VNNI if it is available.

    With VNNI, activations use all 8 bits; their products would saturate on a processor without VNNI.
    """
    words = processor()
    vnni = [name for name in ("avx512_vnni", "avx_vnni") if name in words][:1]
    return list(dict.fromkeys([*target()[0], *(vnni if "static" in spec.activations else [])]))


@cache
def target() -> tuple[tuple[str, ...], str]:
    """Return the instruction sets for which Inductor compiles on this host, and the compiler's version.

    Raises
    ------
    UnavailableError
        There is no C++ compiler.
    """
    try:
        compiler = get_cpp_compiler()
        version = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True, check=True)
    except (InvalidCxxCompiler, OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(
            'The "aot-inductor" runtime needs a C++ compiler, but none was found.',
            hint="Set the environment variable CXX to a compiler, or install one. On Debian and Ubuntu, run apt "
            "install g++. On Fedora, run dnf install gcc-c++.",
        ) from error
    with quiet(), own_cache(_kept_folder()):
        flags = pick_vec_isa().build_arch_flags().split()
    # The compiler flags ``-mavx512vnni`` and ``-mamx-tile`` correspond to Linux's ``avx512_vnni`` and ``amx_tile``.
    names = {f"-m{word.replace('_', '')}": word for word in processor()}
    needed = (names.get(f"-m{flag[2:].replace('-', '')}", "") for flag in flags)
    return tuple(dict.fromkeys(filter(None, needed))), version.stdout.splitlines()[0]


def processor() -> frozenset[str]:
    """Return every word of ``/proc/cpuinfo``, including the names of the processor's instruction sets."""
    return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())


@contextmanager
def own_cache(folder: str) -> Iterator[None]:
    """Let Inductor compile in the private `folder`, unless the user has set another folder.

    Inductor's default folder has a known path in the shared ``/tmp``, where other users could put code that Inductor
    runs. PyTorch writes the default path into an environment variable when the folder is first needed.
    """
    before = os.environ.get(_CACHE)
    if before not in (None, default_cache_dir()):
        yield
        return
    os.environ[_CACHE] = folder
    try:
        yield
    finally:
        del os.environ[_CACHE]


def _kept_folder() -> str:
    """Return the current user's folder for the results of compiler checks, which take up to half a minute."""
    try:
        folder = cache_base() / "inductor"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the home folder is missing or read-only
        return tempfile.mkdtemp(prefix=TEMPORARY)
    return str(folder)

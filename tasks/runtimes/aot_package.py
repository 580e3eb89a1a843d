"""Compiled packages: opened for calls, profiled, and what the compiler may count on of this processor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.utils import _pytree as pytree

from storage.errors import UnavailableError
from storage.root import cache_base
from tasks.libraries import quiet
from tasks.outputs import Call
from tasks.proofs import Operator
from tasks.quantize.operators import load_libraries
from tasks.quantize.spec import Spec
from tasks.runtimes.base import CandidateFiles, Opened, Opener
from tasks.runtimes.torch_modules import profile_torch

with quiet():
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.exc import InvalidCxxCompiler

MODEL = "model.pt2"
_CACHE, TEMPORARY = "TORCHINDUCTOR_CACHE_DIR", "nightquant-inductor-"


class AotOpener(Opener):
    """Loads a package."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the package; its loops and oneDNN's take torch's intra-op threads."""
        torch.set_num_threads(threads)
        load_libraries(files.folder)
        return Opened(open_package(files.folder / MODEL))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Ask torch's profiler and oneDNN's: a package's own loops are what neither names."""
        return profile_torch(partial(opened.call, *inputs), calls)


def open_package(path: Path) -> Call:
    """Load a package, to be called with tensors alone.

    torch tries out the compiler for it, to warn if it was made on another processor. What torch loads is called as a
    program in C++ would call it: its wrapper in Python reads descriptions of inputs and outputs in every call.
    """
    with quiet(), own_cache(_kept_folder()):
        loader = torch._inductor.aoti_load_package(str(path)).loader
    structure = pytree.treespec_loads(loader.get_call_spec()[1])

    def call(*inputs: Tensor) -> object:
        return pytree.tree_unflatten(loader.run(list(inputs)), structure)

    return call


def instructions_for(spec: Spec) -> list[str]:
    """Return the instructions that the compiler may use; for static int8 also one that the model counts on.

    With VNNI activations take all 8 bits, and their products would saturate on a processor without.
    """
    words = processor()
    counted_on = [name for name in ("avx512_vnni", "avx_vnni") if name in words][:1]
    return list(dict.fromkeys([*target()[0], *(counted_on if "static" in spec.activations else [])]))


@cache
def target() -> tuple[tuple[str, ...], str]:
    """The instructions that Inductor compiles for here, and the compiler's version.

    Raises
    ------
    UnavailableError
        There is no C++ compiler.
    """
    try:
        compiler = get_cpp_compiler()
        told = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True, check=True)
    except (InvalidCxxCompiler, OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(
            'The runtime "aot-inductor" needs a C++ compiler, and found none.',
            hint="Install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or name one in CXX.",
        ) from error
    with quiet(), own_cache(_kept_folder()):
        flags = pick_vec_isa().build_arch_flags().split()
    # The compiler says -mavx512vnni and -mamx-tile, the processor avx512_vnni and amx_tile.
    names = {f"-m{word.replace('_', '')}": word for word in processor()}
    needed = (names.get(f"-m{flag[2:].replace('-', '')}", "") for flag in flags)
    return tuple(dict.fromkeys(filter(None, needed))), told.stdout.splitlines()[0]


def processor() -> frozenset[str]:
    """Every word that Linux says of the processor, its instruction sets among them."""
    return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())


@contextmanager
def own_cache(folder: str) -> Iterator[None]:
    """Let Inductor compile in `folder`, which nobody else can write, unless the user names one.

    Its default lies at a known path in the shared /tmp, where others could leave code to be run; torch writes it into
    the environment as soon as it asks for it.
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
    """Where the user's processes keep what compilers can do, which takes up to half a minute to try out."""
    try:
        folder = cache_base() / "inductor"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or none that can be written
        return tempfile.mkdtemp(prefix=TEMPORARY)
    return str(folder)

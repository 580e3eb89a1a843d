"""Open and profile compiled packages, and determine the instruction sets that the compiler may use."""

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
    """Opens a compiled package."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the package; its loops and oneDNN's kernels use torch's intra-op threads."""
        torch.set_num_threads(threads)
        load_libraries(files.folder)
        return Opened(open_package(files.folder / MODEL))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Use torch's profiler and oneDNN's; time that neither names belongs to the package's own loops."""
        return profile_torch(partial(opened.call, *inputs), calls)


def open_package(path: Path) -> Call:
    """Load a package as a callable of tensors.

    On loading, torch runs the compiler to warn about packages from other processors. The loader is called directly, as
    in a C++ program, because torch's Python wrapper parses descriptions of inputs and outputs in every call.
    """
    with quiet(), own_cache(_kept_folder()):
        loader = torch._inductor.aoti_load_package(str(path)).loader
    structure = pytree.treespec_loads(loader.get_call_spec()[1])

    def call(*inputs: Tensor) -> object:
        return pytree.tree_unflatten(loader.run(list(inputs)), structure)

    return call


def instructions_for(spec: Spec) -> list[str]:
    """Return the instructions that the compiler may use, and for static int8 the VNNI instruction set.

    With VNNI, activations use all 8 bits, and their products would saturate on a processor without it.
    """
    words = processor()
    vnni = [name for name in ("avx512_vnni", "avx_vnni") if name in words][:1]
    return list(dict.fromkeys([*target()[0], *(vnni if "static" in spec.activations else [])]))


@cache
def target() -> tuple[tuple[str, ...], str]:
    """Return the instructions for which Inductor compiles on this host, and the compiler's version.

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
            'The runtime "aot-inductor" needs a C++ compiler, but none was found.',
            hint="Install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or set CXX to one.",
        ) from error
    with quiet(), own_cache(_kept_folder()):
        flags = pick_vec_isa().build_arch_flags().split()
    # The compiler's flags are -mavx512vnni and -mamx-tile; Linux's names are avx512_vnni and amx_tile.
    names = {f"-m{word.replace('_', '')}": word for word in processor()}
    needed = (names.get(f"-m{flag[2:].replace('-', '')}", "") for flag in flags)
    return tuple(dict.fromkeys(filter(None, needed))), version.stdout.splitlines()[0]


def processor() -> frozenset[str]:
    """Return every word of /proc/cpuinfo, including the names of the processor's instruction sets."""
    return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())


@contextmanager
def own_cache(folder: str) -> Iterator[None]:
    """Let Inductor compile in the private `folder`, unless the user has set another one.

    Inductor's default folder has a known path in the shared /tmp, where other users could leave code for it to run.
    torch writes that default into the environment when it first needs the folder.
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
    """Return the user's folder for the results of compiler checks, which take up to half a minute."""
    try:
        folder = cache_base() / "inductor"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # there is no home folder, or it is not writable
        return tempfile.mkdtemp(prefix=TEMPORARY)
    return str(folder)

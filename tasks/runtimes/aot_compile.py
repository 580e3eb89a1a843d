"""Compiling an exported model ahead of time by Inductor, where nobody else can write, for this kind of processor."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import QuantizationError, UnavailableError, first_line
from storage.root import cache_base
from tasks.extensions import METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.export import ExportedProgram

    from tasks.outputs import Call
    from tasks.workload.recipe import Recipe

_CACHE, TEMPORARY = "TORCHINDUCTOR_CACHE_DIR", "nightquant-inductor-"
OPTIONS: dict[str, object] = {
    # Without it, int8 weights are not packed and products silently run in float (pytorch/ao#4566).
    "freezing": True,
    # Only the vector instructions that are named below, not whatever else this very processor has.
    "cpp.march": "",
    # Else the number of threads while compiling would be the package's for ever.
    "cpp.dynamic_threads": True,
    # They would lie in the shared folder, wherever the cache is.
    "aot_inductor.precompile_headers": False,
}
_INT8_PRODUCT = re.compile(rb"aoti_torch_cpu__q(?:conv|linear)\w*\(")


def open_package(path: Path) -> Call:
    """Load a package, to be called with tensors alone.

    torch tries out the compiler for it, to warn if it was made on another processor. What torch loads is called as a
    program in C++ would call it: its wrapper in Python reads descriptions of inputs and outputs in every call.
    """
    import torch
    from torch.utils import _pytree as pytree

    from tasks.quantize.engine import quiet

    with quiet(), own_cache(_kept_folder()):
        loader = torch._inductor.aoti_load_package(str(path)).loader
    structure = pytree.treespec_loads(loader.get_call_spec()[1])

    def call(*inputs: Tensor) -> object:
        return pytree.tree_unflatten(loader.run(list(inputs)), structure)

    return call


def compile_package(program: ExportedProgram, path: Path) -> None:
    """Compile an exported model for this processor.

    Raises
    ------
    QuantizationError
        Inductor or the C++ compiler refuses it.
    """
    import torch
    from torch._inductor import config

    try:
        with torch.no_grad(), config.patch(OPTIONS):
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise QuantizationError(
            f"Inductor cannot compile the model: {first_line(error)}.", hint="Use torchscript or onnxruntime for it."
        ) from error


def int8_products(package: Path) -> int:
    """How many convolutions and matrix products of a package run in int8, counted in its C++ source."""
    with zipfile.ZipFile(package) as archive:
        sources = [archive.read(name) for name in archive.namelist() if name.endswith(".cpp")]
    return sum(len(_INT8_PRODUCT.findall(source)) for source in sources)


def refuse_other(before: Sequence[Tensor], after: Sequence[Tensor], recipe: Recipe) -> None:
    """Refuse, with a `QuantizationError`, a package whose outputs are not those of the module that was compiled.

    They are not the same to the bit: fused operations round less often, and in int8 a last digit moves an activation to
    the next of its steps. So the method's own tolerance holds, as it does for the bundle on another processor.
    """
    from tasks.quantize.converted import is_close

    share = METHODS[recipe.method].tolerance_share(recipe)
    if len(before) != len(after) or not all(is_close(*pair, share) for pair in zip(before, after, strict=True)):
        raise QuantizationError(
            f'The recipe "{recipe.name}" computes something else once it is compiled by Inductor.',
            hint="Use torchscript or onnxruntime for it, or exclude modules until it does not.",
        )


@cache
def target() -> tuple[tuple[str, ...], str]:
    """The instructions that Inductor compiles for here, and the compiler's version.

    Raises
    ------
    UnavailableError
        There is no C++ compiler.
    """
    from tasks.quantize.engine import quiet

    with quiet():
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.cpu_vec_isa import pick_vec_isa
        from torch._inductor.exc import InvalidCxxCompiler

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
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

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

"""Compile the C++ operators in `tasks.quantize.native` on first use, store them as an artifact, and load them.

The library depends only on torch, and is named after the operators' namespace, which contains a digest of the sources.
A process can therefore use several versions of the library.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from storage.digest import digest_of
from storage.errors import QuantizationError, UnavailableError
from tasks.values.job import Workspace

KIND = "operators"
SUFFIX = ".so"

_SOURCES = Path(__file__).parent / "native"
_FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fopenmp",
    # Avoid fused multiply-adds, because some processors lack them and every processor must compute the same numbers.
    "-ffp-contract=off",
    # ``errno`` and floating-point traps prevent vectorization and are not needed.
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip


def namespace() -> str:
    """Return the namespace of the current operators, as in ``torch.ops.<namespace>.linear`` and ``.lstm``."""
    return f"nightquant_{digest_of({'sources': _sources(), 'flags': list(_FLAGS)})[:12]}"


def operators() -> torch._ops._OpNamespace:
    """Return the operators compiled from the current sources, whose library is already loaded."""
    loaded: torch._ops._OpNamespace = getattr(torch.ops, namespace())
    return loaded


def is_loaded(name: str) -> bool:
    """Return whether the library `name` is loaded; the check looks for ``linear``, an operator in every library."""
    return hasattr(getattr(torch.ops, name), "linear")


def load_libraries(folder: Path) -> None:
    """Load each operator library in a folder, unless a library with the same name is already loaded."""
    for library in sorted(folder.glob(f"*{SUFFIX}")):
        if not is_loaded(library.stem):
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]


@contextmanager
def portable_kernels() -> Iterator[None]:
    """Run the block's operators with portable code, which accumulates products in 32-bit integers."""
    before = os.environ.get("NIGHTQUANT_ISA", "")
    os.environ["NIGHTQUANT_ISA"] = "scalar"
    try:
        yield
    finally:
        os.environ["NIGHTQUANT_ISA"] = before


def find_or_compile(workspace: Workspace) -> Path:
    """Compile the operators with the system's compiler, or reuse an earlier result; return the library's path."""
    name = namespace()
    made_from = {
        "sources": digest_of(_sources()),
        "flags": list(_FLAGS),
        "compiler": compiler_version(),
        "architecture": platform.machine(),
        "torch": torch.__version__,
    }
    library = f"{name}{SUFFIX}"
    folder = workspace.find_or_make(KIND, made_from, lambda work: _compile(name, work / library))
    return folder / library


@cache
def _sources() -> dict[str, str]:
    paths = sorted(path for path in _SOURCES.iterdir() if path.suffix in (".cpp", ".h"))
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def _compile(name: str, library: Path) -> None:
    root = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    defined = [f"-DNIGHTQUANT_OPERATORS={name}", abi, "-isystem", str(root / "include")]
    sources = [str(path) for path in sorted(_SOURCES.glob("*.cpp"))]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _run([*compiler(), "-c", *_FLAGS, *defined, *sources], work)
        objects = [path.name for path in sorted(work.glob("*.o"))]
        # Link without ``-fopenmp``, because torch includes an OpenMP library whose threads follow torch's settings.
        libraries = [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
        _run([*compiler(), "-shared", *objects, "-o", str(library), *libraries], work)


def compiler() -> list[str]:
    """Return the command of the C++ compiler; raise `UnavailableError` if the host lacks it."""
    command = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(command[0]) is None:
        raise UnavailableError(
            f"This candidate needs a C++ compiler, but none was found (tried: {command[0]}).",
            hint="Install a compiler, for example with apt install g++, or set the environment variable CXX.",
        )
    return command


@cache
def compiler_version() -> str:
    """Return the first line that the C++ compiler prints about its version."""
    return _run([*compiler(), "--version"], Path.cwd()).splitlines()[0]


def _run(command: Sequence[str], folder: Path) -> str:
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        errors = [line for line in process.stderr.splitlines() if "error" in line] or process.stderr.splitlines()[-1:]
        reason = " ".join(errors[:3]) or f"exit code {process.returncode}"
        raise QuantizationError(
            f"{command[0]} cannot compile the int8 operators: {reason}.",
            hint="Set the environment variable CXX to g++ 11 or later, or to clang++ 14 or later.",
        )
    return process.stdout

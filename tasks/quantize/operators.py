"""The operators of `tasks.quantize.native`: C++, compiled on first use into an artifact, and loaded into torch.

The library is a file of its own beside a model that calls them, and needs nothing but torch. Its name is that of its
operators' namespace, which names the sources: libraries of different versions can be used in one process.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from storage.digest import digest_of
from storage.errors import QuantizationError, UnavailableError
from tasks.job import Workspace

KIND = "operators"
SUFFIX = ".so"

_SOURCES = Path(__file__).parent / "native"
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden",
    # Every instruction set computes the same numbers: no fused multiply-adds, which some processors lack.
    "-ffp-contract=off",
    # What keeps these from being compiled to vectors is of no use here: errno and floating-point traps.
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
_FLAGS_HERE = ("-fopenmp",) if sys.platform == "linux" else ()  # elsewhere the loops run on one thread


def namespace() -> str:
    """Return the name of the operators of the sources that are here: ``torch.ops.<namespace>.linear``, ``.lstm``."""
    return f"nightquant_{digest_of({'sources': _sources(), 'flags': list(_FLAGS)})[:12]}"


def operators() -> torch._ops._OpNamespace:
    """The operators of `namespace`.

    Raises
    ------
    QuantizationError
        Their library is not loaded.
    """
    name = namespace()
    if not is_loaded(name):
        raise QuantizationError(f"The operators {name} are not loaded.", hint="Load the library beside the model.")
    found: torch._ops._OpNamespace = getattr(torch.ops, name)
    return found


def is_loaded(name: str) -> bool:
    """Report whether a library of that name is loaded: each has the operator ``linear``."""
    return hasattr(getattr(torch.ops, name), "linear")


def load_libraries(folder: Path) -> None:
    """Load the libraries of operators that lie in a folder, but none a second time, wherever it was loaded from."""
    for library in sorted(folder.glob(f"*{SUFFIX}")):
        if not is_loaded(library.stem):
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]


def find_or_compile(workspace: Workspace) -> Path:
    """Compile the operators with the system's compiler, or find what was compiled before; the library's file.

    Raises
    ------
    UnavailableError
        There is no C++ compiler.
    QuantizationError
        It refuses the sources.
    """
    name, compiler = namespace(), _compiler()
    made_from = {
        "sources": digest_of(_sources()),
        "flags": [*_FLAGS, *_FLAGS_HERE],
        "compiler": _version(compiler),
        "architecture": platform.machine(),
        "torch": torch.__version__,
    }
    library = f"{name}{SUFFIX}"
    made = workspace.find_or_make(KIND, made_from, lambda folder: _compile(compiler, name, folder / library))
    return made / library


@cache
def _sources() -> dict[str, str]:
    paths = sorted(path for path in _SOURCES.iterdir() if path.suffix in (".cpp", ".h"))
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def _compile(compiler: str, name: str, library: Path) -> None:
    root = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    defined = [f"-DNIGHTQUANT_OPERATORS={name}", abi, "-isystem", str(root / "include")]
    sources = [str(path) for path in sorted(_SOURCES.glob("*.cpp"))]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _run([compiler, "-c", *_FLAGS, *_FLAGS_HERE, *defined, *sources], work)
        objects = [path.name for path in sorted(work.glob("*.o"))]
        # Linked without -fopenmp: torch brings an OpenMP of its own, whose threads are the ones that it counts.
        undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        libraries = [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
        _run([compiler, "-shared", *undefined, *objects, "-o", str(library), *libraries], work)


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for candidate in (wanted,) if wanted else _COMPILERS:
        if (found := shutil.which(candidate)) is not None:
            return found
    raise UnavailableError(
        f"There is no C++ compiler here ({wanted or ', '.join(_COMPILERS)}), which the int8 operators need.",
        hint="Install one, g++ or clang (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: "
        "xcode-select --install), or name it in the environment variable CXX.",
    )


@cache
def _version(compiler: str) -> str:
    return _run([compiler, "--version"], Path.cwd()).splitlines()[0]


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
        raise QuantizationError(
            f"{command[0]} cannot compile the int8 operators: {' '.join(errors[:3]) or f'exit code {done.returncode}'}",
            hint="They need C++20 and torch's headers: g++ 11 or clang 14, or newer.",
        )
    return done.stdout

"""The operators of `tasks.quantize.native`: C++, compiled on first use into an artifact, and loaded into torch.

The library is a file of its own beside a model that calls them, and needs nothing but torch. Its name is that of its
operators' namespace, which names the sources: libraries of different versions can be used in one process.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from storage.artifacts import artifact_digest
from storage.digest import digest_of
from storage.errors import QuantizationError
from tasks.compiler import compiler_version, find_compiler, run_compiler
from tasks.job import Workspace

KIND = "operators"
SUFFIX = ".so"

_SOURCES = Path(__file__).parent / "native"
_PURPOSE = "the int8 operators need"
_FAILING = "cannot compile the int8 operators"
_HINT = "They need C++20 and torch's headers: g++ 11 or clang 14, or newer."
_FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden",
    # Every instruction set computes the same numbers: no fused multiply-adds, which some processors lack.
    "-ffp-contract=off",
    # What keeps these from being compiled to vectors is of no use here: errno and floating-point traps.
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip


def namespace() -> str:
    """The name of the operators of the sources that are here: ``torch.ops.<namespace>.linear`` and ``.lstm``."""
    return _namespace(_sources())


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
    """Whether a library of that name is loaded: each has the operator ``linear``."""
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
    sources = _sources()
    name = _namespace(sources)
    made_from = {
        "sources": digest_of(sources),
        "flags": [*_FLAGS, *_flags_here()],
        "compiler": compiler_version(find_compiler(_PURPOSE)),
        "architecture": platform.machine(),
        "torch": torch.__version__,
    }
    digest, store = artifact_digest(KIND, made_from), workspace.store
    if store.find(KIND, digest) is None:
        with workspace.alone(digest):
            if store.find(KIND, digest) is None:
                with store.create(KIND, digest, made_from) as folder:
                    _compile(name, folder / f"{name}{SUFFIX}")
    return store.path(KIND, digest) / f"{name}{SUFFIX}"


@cache
def _sources() -> dict[str, str]:
    paths = sorted(path for path in _SOURCES.iterdir() if path.suffix in (".cpp", ".h"))
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


def _namespace(sources: dict[str, str]) -> str:
    return f"nightquant_{digest_of({'sources': sources, 'flags': list(_FLAGS)})[:12]}"


def _flags_here() -> list[str]:
    # Elsewhere the loops run on one thread.
    return ["-fopenmp"] if sys.platform == "linux" else []


def _compile(name: str, library: Path) -> None:
    root = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    defined = [f"-DNIGHTQUANT_OPERATORS={name}", abi, "-isystem", str(root / "include")]
    sources = [str(path) for path in sorted(_SOURCES.glob("*.cpp"))]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        compiler = find_compiler(_PURPOSE)
        run_compiler([compiler, "-c", *_FLAGS, *_flags_here(), *defined, *sources], work, _FAILING, _HINT)
        objects = [path.name for path in sorted(work.glob("*.o"))]
        # Linked without -fopenmp: torch brings an OpenMP of its own, whose threads are the ones that it counts.
        undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        libraries = [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
        linking = [compiler, "-shared", *undefined, *objects, "-o", str(library), *libraries]
        run_compiler(linking, work, _FAILING, _HINT)

"""The system's compiler, for the few sources in C and C++ that are compiled on first use."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from storage.errors import QuantizationError, UnavailableError

_COMPILERS = ("c++", "g++", "clang++")


def find_compiler(purpose: str) -> str:
    """The C++ compiler's path; ``$CXX``, where that is set.

    Raises
    ------
    UnavailableError
        There is none; the message names `purpose`, which needs one.
    """
    wanted = os.environ.get("CXX")
    for candidate in (wanted,) if wanted else _COMPILERS:
        if (found := shutil.which(candidate)) is not None:
            return found
    raise UnavailableError(
        f"There is no C++ compiler here ({wanted or ', '.join(_COMPILERS)}), which {purpose}.",
        hint="Install one, g++ or clang (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: "
        "xcode-select --install), or name it in the environment variable CXX.",
    )


@cache
def compiler_version(compiler: str) -> str:
    """Its version in one line."""
    return run_compiler([compiler, "--version"], Path.cwd(), "says no version").splitlines()[0]


def run_compiler(command: Sequence[str], folder: Path, failing: str, hint: str = "") -> str:
    """Run it in `folder`; its output.

    Raises
    ------
    QuantizationError
        It fails: "<compiler> `failing`: <its errors>".
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-1:]
        raise QuantizationError(
            f"{command[0]} {failing}: {' '.join(errors[:3]) or f'exit code {done.returncode}'}", hint=hint
        )
    return done.stdout

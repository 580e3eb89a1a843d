"""The library of operators: compiled once, found again, refused with what to do, and loaded once from wherever."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError, UnavailableError
from tasks.quantize.operators import find_or_compile, namespace, operators
from tasks.values.job import Workspace


@pytest.mark.slow
def test_the_library_is_found_again_and_named_by_its_operators(operators_loaded: Path, images_store: object) -> None:
    assert isinstance(images_store, ArtifactStore)
    written = operators_loaded.stat().st_mtime_ns
    assert find_or_compile(Workspace(images_store)) == operators_loaded
    assert operators_loaded.stat().st_mtime_ns == written
    assert operators_loaded.name == f"{namespace()}.so"


@pytest.mark.slow
def test_an_unknown_instruction_set_is_refused(operators_loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTQUANT_ISA", "abacus")
    with pytest.raises(RuntimeError, match="amx, avx512-vnni, avx2 or scalar"):
        operators().linear(torch.zeros(1, 1), torch.zeros(16 * 72, dtype=torch.uint8), 1)


def test_without_a_compiler_the_error_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UnavailableError, match=r"needs a C\+\+ compiler.*apt install g\+\+"):
        find_or_compile(Workspace(ArtifactStore(tmp_path / "store")))


@pytest.mark.slow
def test_the_compilers_message_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "old-c++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "old 1.0" && exit\necho "error: unknown -std=c++20" >&2\nexit 1\n',
        encoding="utf-8",
    )
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    store = ArtifactStore(tmp_path / "store")
    with pytest.raises(QuantizationError, match=r"unknown -std=c\+\+20.*g\+\+ 11"):
        find_or_compile(Workspace(store))
    assert not list((tmp_path / "store").rglob("*.so"))

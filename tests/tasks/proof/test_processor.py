from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import UnavailableError
from tasks.job import Workspace
from tasks.proof import processor
from tasks.proof.processor import LESSER, environment_of, lesser_processors

CAPABILITY = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.cpu._is_amx_tile_supported())"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(ArtifactStore(tmp_path_factory.mktemp("store")))


@pytest.fixture
def lesser(workspace: Workspace) -> list[str]:
    """Those that can be tried here."""
    try:
        environment_of("avx2", workspace)
    except UnavailableError as error:
        pytest.skip(error.message)
    return lesser_processors() or pytest.skip("this processor has none of the instruction sets that could be missing")


def test_libraries_dispatch_as_on_the_lesser_processor(lesser: list[str], workspace: Workspace) -> None:
    for name in lesser:
        variables = os.environ | environment_of(name, workspace)
        done = subprocess.run(
            [sys.executable, "-c", CAPABILITY], env=variables, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [{"avx2": "AVX2", "avx512_vnni": "AVX512"}[name], "False"]


def test_a_fault_of_another_kind_still_ends_the_process(lesser: list[str], workspace: Workspace) -> None:
    variables = os.environ | environment_of(lesser[0], workspace)
    command = [sys.executable, "-c", "import ctypes; ctypes.string_at(0)"]
    assert subprocess.run(command, env=variables, check=False).returncode == -11


def test_a_process_that_was_not_reached_is_refused(
    lesser: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The dynamic loader splits at spaces, prints that it found no such library, and goes on.
    with pytest.raises(UnavailableError, match="cannot be tried here"):
        environment_of("avx2", Workspace(ArtifactStore(tmp_path / "with a space")))
    monkeypatch.setattr(processor, "_instruction_sets", lambda: frozenset({"avx2"}))
    with pytest.raises(UnavailableError, match="cpuid_fault"):
        environment_of("avx2", Workspace(ArtifactStore(tmp_path)))


def test_only_processors_that_lack_something_and_have_what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*here: str) -> list[str]:
        monkeypatch.setattr(processor, "_instruction_sets", lambda: frozenset(here))
        return lesser_processors()

    assert of("avx2") == []
    assert of("avx2", "avx512f", "avx512_vnni") == ["avx2"]
    assert of("avx2", "avx512f", "amx_tile") == list(LESSER)
    assert lesser_processors(["avx512f"]) == ["avx512_vnni"]
    assert lesser_processors(["amx_tile"]) == []

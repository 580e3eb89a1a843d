"""A real bundle, found again and used by its own files."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.digest import JsonObject
from storage.errors import BundleError, UnavailableError
from storage.seal import MANIFEST, read_manifest, write_sums
from tasks.publish.current import find_current
from tasks.runtimes.torchscript import TorchScript
from tasks.values.job import Workspace
from tasks.values.results import CurrentBundle
from tests.tasks.pipeline import evaluate, example_inputs, opened
from tests.tasks.publish.conftest import Made, make

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make(tmp_path_factory.mktemp("store"))
    made.package(BundleStore(made.store.place), measurements=made.rows(coverage=0.5))
    return made


@pytest.fixture
def made(packaged: Made, tmp_path: Path) -> Made:
    """A store of its own with one bundle."""
    shutil.copytree(packaged.store.root, tmp_path / "store", symlinks=True)
    return replace(packaged, store=ArtifactStore(tmp_path / "store"))


def found(made: Made) -> CurrentBundle:
    current = find_current(Workspace(made.store), made.job, [made.candidate])
    assert current is not None
    return current


def bundle_of(made: Made) -> Path:
    folder = BundleStore(made.store.place).local_folder("tiny", found(made).version)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def test_there_is_no_current_bundle_before_the_first_promotion(made: Made) -> None:
    shutil.rmtree(made.store.root / "handoff")
    assert find_current(Workspace(made.store), made.job, [made.candidate]) is None


def test_tonights_candidate_of_the_same_bytes_is_the_current_bundle(made: Made) -> None:
    current = found(made)
    assert (str(current.same_as), current.made_as) == ("int8/torchscript", made.candidate.digest)
    assert (current.fault, current.outdated) == ("", "")
    assert current.coverage == 0.5


def test_a_candidate_is_withdrawn_if_users_rolled_back_from_its_content(made: Made) -> None:
    bundles, first = BundleStore(made.store.place), found(made)
    assert first.withdrawn == ()
    other = make(made.store.root, seed=1)
    other.package(bundles, measurements=other.rows(coverage=0.5))
    bundles.roll_back("tiny", by="a test", reason="it is slower")
    for candidate, withdrawn in ((made.candidate, ()), (other.candidate, (other.candidate.name,))):
        current = find_current(Workspace(made.store), other.job, [candidate])
        assert current is not None
        assert (current.version, current.withdrawn) == (first.version, withdrawn)


@pytest.mark.slow
def test_a_candidate_rebuilt_with_other_bytes_is_not_the_current_bundle(made: Made) -> None:
    folder = made.store.path("candidate", made.candidate.digest)
    document, made_from = folder / "candidate.json", json.loads((folder / "artifact.json").read_text())["made_from"]
    content = document.read_bytes()
    shutil.rmtree(folder)
    with made.store.create("candidate", made.candidate.digest, made_from) as anew:
        (anew / "candidate.json").write_bytes(content)
        (anew / "model.ts").write_bytes(b"made anew")
    assert found(made).same_as is None


def test_the_current_bundles_files_compute_the_same_even_if_the_artifact_is_gone(made: Made) -> None:
    inputs = example_inputs(made.job.workload, made.job.dataset, made.store).values()
    expected = opened(made.candidate, made.store)(*inputs)
    shutil.rmtree(made.store.path("candidate", made.candidate.digest))
    current = find_current(Workspace(made.store), made.job, [])
    assert current is not None
    assert current.candidate is not None
    assert str(current.candidate.name) == "int8/torchscript"
    assert current.candidate.size_bytes == made.candidate.size_bytes
    torch.testing.assert_close(opened(current.candidate, made.store)(*inputs), expected)
    assert evaluate(made.job, current.candidate, made.store).quality == made.evaluation.quality


@pytest.mark.slow
def test_one_from_another_checkpoint_is_outdated(made: Made, tmp_path: Path) -> None:
    other = make(tmp_path / "other", seed=1)
    current = find_current(Workspace(made.store), other.job, [])
    assert current is not None
    assert current.outdated.startswith("it was made from checkpoint")
    assert other.job.checkpoint.digest[:12] in current.outdated


@pytest.mark.slow
def test_a_damaged_bundle_is_a_failure_and_none_of_its_bytes_are_used(made: Made) -> None:
    (bundle_of(made) / "model.ts").write_bytes(b"something else")
    current = found(made)
    assert current.candidate is None
    assert "model.ts was changed" in current.fault


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [("model", "no-such-runtime", "no-such-runtime"), ("recipe", "no-such-method", "no-such-method")],
)
def test_a_bundle_that_this_version_cannot_use_is_a_failure(made: Made, part: str, value: str, why: str) -> None:
    folder = bundle_of(made)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest[part]["runtime" if part == "model" else "method"] = value
    (folder / MANIFEST).write_text(json.dumps(manifest))
    write_sums(folder)
    current = found(made)
    assert current.candidate is None
    assert why in current.fault


def test_a_file_that_is_exchanged_after_it_was_checked_is_not_measured(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bundle_of(made)

    def exchanged(path: Path) -> JsonObject:
        manifest = read_manifest(path)
        (path / "model.ts").write_bytes(b"exchanged")
        return manifest

    monkeypatch.setattr("tasks.publish.current.read_manifest", exchanged)
    current = find_current(Workspace(made.store), made.job, [])
    assert current is not None
    assert "model.ts changed while it was being copied" in current.fault
    assert (folder / "model.ts").read_bytes() == b"exchanged"
    assert not list(made.store.root.glob("artifacts/current/*/*/artifact.json"))


@pytest.mark.slow
def test_a_bundle_whose_runtime_is_not_installed_here_is_unknown_and_not_at_fault(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchScript, "distributions", ("no-such-package",))
    with pytest.raises(UnavailableError, match="no-such-package"):
        find_current(Workspace(made.store), made.job, [])


def test_a_bundle_that_the_system_refuses_to_read_is_unknown_and_not_at_fault(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path) -> list[os.DirEntry[str]]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr("storage.seal.os", SimpleNamespace(scandir=refused))
    with pytest.raises(BundleError, match="Permission denied"):
        find_current(Workspace(made.store), made.job, [])

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore, artifact_digest
from storage.bundles import BundleStore
from storage.check import check
from storage.results.catalog import refresh
from storage.root import StoreRoot
from tests.storage.bundle_files import fill, publish, version
from tests.storage.results.rows import baseline, measurement, write_night

NIGHT = dt.date(2026, 3, 1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    digest = artifact_digest("quantized", {"seed": 1})
    with ArtifactStore(tmp_path).create("quantized", digest, {"seed": 1}) as folder:
        (folder / "weights").write_bytes(b"weights")
    run = "run-1"
    rows = [baseline(run, NIGHT), measurement(run, NIGHT, artifact_digest=digest)]
    write_night(tmp_path, NIGHT, rows, run)
    refresh(tmp_path)
    return tmp_path


def results(store: Path) -> Path:
    return store / "results/measurements/month=2026-03/run-1.parquet"


def artifact(store: Path) -> Path:
    return next((store / "artifacts/quantized").glob("*/*"))


def said(store: Path) -> str:
    return "\n".join(f"{problem.where} {problem.what} {problem.remedy}" for problem in check(store).problems)


def test_a_good_store_has_no_problems(store: Path) -> None:
    checked = check(store)
    assert checked.problems == ()
    assert (checked.results_files, checked.artifacts) == (2, 1)


def test_a_truncated_results_file_is_named(store: Path) -> None:
    results(store).write_bytes(results(store).read_bytes()[:-100])
    assert "run-1.parquet cannot be read" in said(store)


def test_a_foreign_file_among_the_results_is_named(store: Path) -> None:
    (results(store).parent / "notes.txt").write_text("x")
    assert "notes.txt does not belong here" in said(store)


def test_a_changed_missing_or_added_file_of_an_artifact_is_named(store: Path) -> None:
    (artifact(store) / "weights").write_bytes(b"other")
    (artifact(store) / "more").touch()
    assert "weights was changed: its digest differs" in said(store)
    assert "more is not in the manifest" in said(store)
    (artifact(store) / "weights").unlink()
    assert "weights is missing" in said(store)


def test_an_artifact_under_a_wrong_name_or_without_manifest_is_named(store: Path) -> None:
    moved = artifact(store).rename(artifact(store).with_name("0" * 64))
    assert "does not have the digest of its inputs as its name" in said(store)
    (moved / "artifact.json").unlink()
    assert "has no readable artifact.json" in said(store)


@pytest.mark.parametrize("folder", ["results/measurements/month=2026-03", "reports", "handoff/word-lm"])
@pytest.mark.slow
def test_files_of_a_killed_writer_are_named_once_they_are_old(store: Path, folder: str) -> None:
    left = store / folder / f".run-2-{'a' * 32}.tmp"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    assert said(store) == ""
    age(left, 2)
    assert ".tmp is left over" in said(store)


def age(path: Path, hours: float) -> None:
    """Let a file look as if it had been written so long ago."""
    os.utime(path, (time.time() - hours * 3600,) * 2)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.server)])
def handed_over(request: pytest.FixtureRequest, tmp_path: Path) -> StoreRoot:
    """A store of two bundles, the second of them current."""
    root = StoreRoot.of(tmp_path / "store" if request.param == "local" else request.getfixturevalue("s3_store"))
    for number in (1, 2):
        publish(BundleStore(root), number)
    return root


def problems(root: StoreRoot) -> list[str]:
    return [f"{problem.where} {problem.what}" for problem in check(root).problems]


def test_a_changed_added_or_missing_file_of_a_bundle_is_named(handed_over: StoreRoot) -> None:
    location = f"handoff/word-lm/{version(1)}"
    handed_over.put(f"{location}/file-0.bin", handed_over.read(f"{location}/file-0.bin") + b"!")
    handed_over.put(f"{location}/more", b"x")
    handed_over.delete(f"{location}/file-1.bin")
    assert problems(handed_over) == [
        f"{location} differs from the published bundle: file-1.bin is missing; more is not listed in SHA256SUMS; "
        "file-0.bin was changed"
    ]
    assert "nightquant handoff rollback" in check(handed_over).problems[0].remedy


def test_a_pointer_to_a_bundle_that_is_gone_is_named(handed_over: StoreRoot) -> None:
    for entry in handed_over.list(f"handoff/word-lm/{version(2)}"):
        handed_over.delete(entry.name)
    assert problems(handed_over) == [
        f"handoff/word-lm/current.json names the bundle {version(2)}, which does not exist"
    ]


@pytest.mark.parametrize("number", [1, 2], ids=["earlier", "current"])
@pytest.mark.slow
def test_a_bundle_swapped_for_another_complete_one_is_named(
    number: int, handed_over: StoreRoot, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    fill(other, b"evil")
    for path in other.iterdir():
        handed_over.put(f"handoff/word-lm/{version(number)}/{path.name}", path)
    (problem,) = problems(handed_over)
    assert problem.startswith(f"handoff/word-lm/{version(number)} differs from the published bundle")


def test_a_damaged_pointer_is_named(handed_over: StoreRoot) -> None:
    pointer = handed_over.read("handoff/word-lm/current.json")
    handed_over.put("handoff/word-lm/current.json", pointer[:-9])
    (problem,) = check(handed_over).problems
    assert "current.json is damaged" in problem.what
    assert problem.remedy == "Restore the file from a backup, or remove it."


def test_a_bundle_without_its_checksums_is_named(tmp_path: Path) -> None:
    for number in (1, 2):
        publish(BundleStore(tmp_path), number)
        (tmp_path / "handoff/word-lm" / version(number) / "SHA256SUMS").unlink()
    assert problems(StoreRoot.of(tmp_path)) == [
        f"handoff/word-lm/{version(number)} has no SHA256SUMS, so it is not a bundle" for number in (1, 2)
    ]


@pytest.mark.server
def test_an_upload_is_a_problem_once_it_has_stopped(s3_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root, location = StoreRoot.of(s3_store), f"handoff/word-lm/{version(1)}"
    root.put(f"{location}/model.ts", b"weights")
    assert problems(root) == []
    monkeypatch.setattr("storage.check._ABANDONED_S", -60.0)
    assert problems(root) == [f"{location} has no SHA256SUMS, so it is not a bundle"]

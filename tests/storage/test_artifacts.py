from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import StoreError
from storage.root import StoreRoot, is_inside

pytestmark = pytest.mark.server
MADE_FROM = {"seed": 1}
DIGEST = artifact_digest("checkpoint", MADE_FROM)
LOCATION = f"artifacts/checkpoint/{DIGEST[:2]}/{DIGEST}"


def make(store: ArtifactStore) -> None:
    with store.create("checkpoint", DIGEST, MADE_FROM) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "weights.bin").write_bytes(b"weights")


def test_an_artifact_is_published_atomically_and_fetched_elsewhere(s3_store: str, tmp_path: Path) -> None:
    store = ArtifactStore(s3_store)
    assert store.find("checkpoint", DIGEST) is None
    make(store)
    names = [entry.name for entry in StoreRoot.of(s3_store).list("artifacts")]
    assert names == [f"{LOCATION}/artifact.json", f"{LOCATION}/sub/weights.bin"]
    shutil.rmtree(tmp_path / "cache")
    found = ArtifactStore(store.place).path("checkpoint", DIGEST)
    assert (found / "sub" / "weights.bin").read_bytes() == b"weights"


def test_nothing_is_visible_where_the_maker_fails(s3_store: str) -> None:
    store = ArtifactStore(s3_store)

    def fail() -> None:
        with store.create("checkpoint", DIGEST, MADE_FROM) as folder:
            (folder / "weights.bin").write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert StoreRoot.of(s3_store).list("artifacts") == []
    assert store.find("checkpoint", DIGEST) is None


@pytest.mark.parametrize(("content", "message"), [(b"other", "was changed"), (None, "is missing")])
def test_damage_is_found_when_fetching(s3_store: str, tmp_path: Path, content: bytes | None, message: str) -> None:
    store = ArtifactStore(s3_store)
    make(store)
    shutil.rmtree(tmp_path / "cache")
    root = StoreRoot.of(s3_store)
    root.delete(f"{LOCATION}/sub/weights.bin")
    if content:
        root.put(f"{LOCATION}/sub/weights.bin", content)
    with pytest.raises(StoreError, match=message):
        store.find("checkpoint", DIGEST)
    assert not list((tmp_path / "cache").rglob("weights.bin"))


MANIFEST: dict[str, Any] = {
    "kind": "checkpoint",
    "digest": DIGEST,
    "made_from": MADE_FROM,
    "files": {"weights.bin": {"bytes": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}},
}


@pytest.mark.parametrize("name", ["../../../../../evil", "/tmp/nightquant-evil", "..\\evil", "", "evil\0"])
def test_a_manifest_that_names_files_outside_its_folder_is_refused(s3_store: str, tmp_path: Path, name: str) -> None:
    document = json.dumps(MANIFEST | {"files": {name: MANIFEST["files"]["weights.bin"]}}).encode()
    StoreRoot.of(s3_store).put(f"{LOCATION}/artifact.json", document)
    with pytest.raises(StoreError, match=r"is damaged: in its artifact\.json, Value error, the name .* is not allowed"):
        ArtifactStore(s3_store).find("checkpoint", DIGEST)
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[" * 100_000,
        json.dumps(MANIFEST | {"files": {"weights.bin": {}}}).encode(),
        json.dumps(MANIFEST | {"digest": "0" * 64}).encode(),
    ],
    ids=["empty", "deep", "facts", "digest"],
)
def test_an_invalid_manifest_is_one_message(tmp_path: Path, document: bytes) -> None:
    StoreRoot.of(tmp_path).put(f"{LOCATION}/artifact.json", document)
    with pytest.raises(StoreError, match=r"is damaged: .*artifact\.json"):
        ArtifactStore(tmp_path).find("checkpoint", DIGEST)


@pytest.mark.parametrize(
    ("kind", "digest"), [("../../evil", "0" * 64), ("checkpoint", "../" * 30), ("images", "0" * 63)]
)
def test_a_reference_to_a_missing_artifact_is_refused(tmp_path: Path, kind: str, digest: str) -> None:
    with pytest.raises(StoreError, match=r"The reference to the .* artifact .* is not valid"):
        ArtifactStore(tmp_path).find(kind, digest)


def test_an_artifact_that_has_changed_is_never_used(tmp_path: Path) -> None:
    make(ArtifactStore(tmp_path))
    changed = tmp_path / LOCATION / "sub/weights.bin"
    assert ArtifactStore(tmp_path).find("checkpoint", DIGEST)
    changed.write_bytes(b"Weights")
    with pytest.raises(StoreError, match=r"sub/weights\.bin was changed"):
        ArtifactStore(tmp_path).path("checkpoint", DIGEST)
    changed.unlink()
    with pytest.raises(StoreError, match=r"sub/weights\.bin is missing"):
        ArtifactStore(tmp_path).path("checkpoint", DIGEST)


@given(parts=st.lists(st.sampled_from(["..", ".", "", "a", "\\", "\0", "/", "b c", "é"]), max_size=6))
def test_a_name_that_is_let_through_stays_inside_its_folder(parts: list[str]) -> None:
    name = "/".join(parts)
    if is_inside(name):
        assert Path(os.path.normpath(Path("/folder", name))).is_relative_to("/folder")

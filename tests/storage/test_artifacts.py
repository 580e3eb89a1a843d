from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore, artifact_digest
from storage.errors import StoreError
from storage.root import StoreRoot

pytestmark = pytest.mark.server
MADE_FROM = {"seed": 1}
DIGEST = artifact_digest("checkpoint", MADE_FROM)
LOCATION = f"artifacts/checkpoint/{DIGEST[:2]}/{DIGEST}"


def make(store: ArtifactStore) -> None:
    with store.create("checkpoint", DIGEST, MADE_FROM) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "weights.bin").write_bytes(b"weights")


def test_an_artifact_is_published_whole_and_fetched_elsewhere(s3_store: str, tmp_path: Path) -> None:
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


def test_an_upload_cut_short_is_invisible_and_completed_by_the_next_maker(s3_store: str) -> None:
    store = ArtifactStore(s3_store)
    StoreRoot.of(s3_store).put(f"{LOCATION}/sub/weights.bin", b"half")
    assert store.find("checkpoint", DIGEST) is None
    make(store)
    assert StoreRoot.of(s3_store).read(f"{LOCATION}/sub/weights.bin") == b"weights"


def test_a_local_copy_does_not_stand_in_for_the_store(s3_store: str) -> None:
    store = ArtifactStore(s3_store)
    make(store)
    StoreRoot.of(s3_store).delete(f"{LOCATION}/artifact.json")
    assert store.find("checkpoint", DIGEST) is None
    make(store)
    assert store.find("checkpoint", DIGEST) is not None


@pytest.mark.parametrize(("content", "message"), [(b"other", "not what was published"), (None, "is missing")])
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


@pytest.mark.parametrize("name", ["../../../../../evil", "/tmp/nightquant-evil", "sub/../../evil"])
def test_a_manifest_that_names_files_outside_its_folder_is_refused(s3_store: str, tmp_path: Path, name: str) -> None:
    manifest = {"files": {name: {"bytes": 4, "sha256": "0" * 64}}}
    root = StoreRoot.of(s3_store)
    root.put(f"{LOCATION}/{name}", b"evil")
    root.put(f"{LOCATION}/artifact.json", json.dumps(manifest).encode())
    with pytest.raises(StoreError, match="outside its folder"):
        ArtifactStore(s3_store).find("checkpoint", DIGEST)
    assert not list((tmp_path / "cache").rglob("*evil*"))

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors import SafetensorError
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import InputError, StoreError
from tasks import tensor_files
from tasks.checkpoint.artifact import WEIGHTS_FILE, find_or_make
from tasks.refs import CheckpointRef, DatasetRef
from tests.tasks.vision_workloads import image_workload

DATASET = DatasetRef(kind="images", digest="0" * 64, splits={"test": 3}, classes=3, sample_shape=(3, 4, 4))
WORKLOAD = image_workload(
    model={"kind": "factory", "factory": "tests.tasks.checkpoint.test_artifact:network"},
    checkpoint={"kind": "uri", "uri": "weights.pth"},
)
FEATURES = {"input": 4}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES["input"], 3), nn.BatchNorm1d(3))


def found_or_made(store: ArtifactStore, made: list[int]) -> CheckpointRef:
    def make() -> Mapping[str, Tensor]:
        made.append(1)
        return network().state_dict()

    return find_or_make(WORKLOAD, DATASET, store, {"sha256": "the same"}, make)


def test_what_is_found_is_not_made_again(tmp_path: Path) -> None:
    store, made = ArtifactStore(tmp_path), list[int]()
    first = found_or_made(store, made)
    assert found_or_made(store, made) == first
    assert len(made) == 1
    # A batch norm's count of batches is a scalar.
    assert first.parameters == 4 * 3 + 3 + 4 * 3 + 1


def test_what_is_found_is_held_against_a_model_whose_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(tmp_path)
    found_or_made(store, [])
    monkeypatch.setitem(FEATURES, "input", 5)
    with pytest.raises(InputError, match=r"0\.weight: the checkpoint has \[3, 4\], the workload \[3, 5\]"):
        found_or_made(store, [])


def test_a_damaged_file_that_is_found_is_named(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    reference = found_or_made(store, [])
    path = store.path(reference.kind, reference.digest) / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(StoreError, match="damaged"):
        found_or_made(store, [])


def test_a_full_disk_is_told_as_the_store_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensor_files, "save_file", full)
    with pytest.raises(StoreError, match=r"cannot be written: No space left on device\."):
        found_or_made(ArtifactStore(tmp_path), [])
    assert not list((tmp_path / "artifacts").rglob("*.safetensors"))

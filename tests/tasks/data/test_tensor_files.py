from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from storage.artifacts import ArtifactStore
from storage.errors import StoreError
from tasks.data.tensor_files import save_tensors

TENSORS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.arange(3)}


@pytest.mark.slow
def test_the_store_says_that_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    store = ArtifactStore(tmp_path)
    with (
        pytest.raises(StoreError, match=r"Cannot write to the store .*No space left on device"),
        store.create("checkpoint", "a" * 64, {}) as folder,
    ):
        save_tensors(TENSORS, folder / "weights.safetensors")

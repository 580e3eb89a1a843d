from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import ShuffleNet_V2_X0_5_Weights, shufflenet_v2_x0_5

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.weights import load_state
from tasks.domains import checkpoint
from tasks.run.stages import prepare
from tasks.values.job import Workspace
from tasks.values.refs import DatasetRef
from tasks.workload import Workload
from tests.storage.http_server import Site, serving
from tests.tasks.pipeline import obtain
from tests.tasks.vision_workloads import image_workload
from tests.tasks.workloads import workload_of

WORDS = 5
DATASET = DatasetRef(kind="corpus", digest="0" * 64, splits={"test": 3}, vocabulary=WORDS)
SMALL = {"kind": "word-lm", "embedding_size": 4, "hidden_size": 3, "layers": 2}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def language_model(checkpoint: dict[str, Any]) -> Workload:
    return workload_of("language-model", {"kind": "pydoc-topics"}, SMALL, checkpoint)


def weights() -> dict[str, Tensor]:
    """The tutorial's parameters."""
    parts = {"encoder": nn.Embedding(WORDS, 4), "rnn": nn.LSTM(4, 3, 2), "decoder": nn.Linear(3, WORDS)}
    return {f"{name}.{key}": tensor for name, part in parts.items() for key, tensor in part.state_dict().items()}


def test_weights_that_are_not_finite_are_refused(store: ArtifactStore, tmp_path: Path) -> None:
    state = weights()
    state["decoder.bias"][1] = torch.nan
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"NaN or infinities: decoder\.bias"):
        obtain(language_model({"kind": "uri", "uri": str(tmp_path / "w.pth")}), DATASET, store)
    assert list((store.root / "artifacts").rglob("*.safetensors")) == []


def test_a_checkpoint_behind_a_url_is_downloaded_once(store: ArtifactStore, tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / "w.pth")
    content = (tmp_path / "w.pth").read_bytes()
    with serving(Site(content)) as site:
        settings = {"kind": "uri", "uri": site.url, "sha256": hashlib.sha256(content).hexdigest()}
        first = obtain(language_model(settings), DATASET, store)
        asked = len(site.asked)
        assert asked == 1
        assert obtain(language_model(settings), DATASET, store) == first
        assert len(site.asked) == asked
    assert list((store.root / "downloads").iterdir()) == []


def test_trained_weights_are_found_again_without_training(store: ArtifactStore, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("some words of a tiny text \n" * 20)
    settings = {"kind": "train", "epochs": 1, "batch_size": 2, "sequence_length": 20}
    workload = workload_of("language-model", {"kind": "text", "uri": str(tmp_path)}, SMALL, settings)
    dataset = prepare(Workspace(store), workload)
    told: list[float] = []
    first = obtain(workload, dataset, store, lambda done, total, unit="": told.append(done))
    steps = len(told)
    assert steps > 0
    assert obtain(workload, dataset, store, lambda done, total, unit="": told.append(done)) == first
    assert len(told) == steps
    assert load_state(first, store)["encoder.weight"].shape == (dataset.vocabulary, 4)


def test_seeded_weights_depend_on_the_seed_alone_and_leave_the_generator(store: ArtifactStore) -> None:
    before = torch.random.get_rng_state()
    first, other = (obtain(language_model({"kind": "seeded", "seed": seed}), DATASET, store) for seed in (1, 2))
    again = obtain(language_model({"kind": "seeded", "seed": 1}), DATASET, ArtifactStore(store.root / "other"))
    assert torch.equal(before, torch.random.get_rng_state())
    assert first == again
    assert first.digest != other.digest
    weight = load_state(first, store)["encoder.weight"]
    assert torch.equal(weight, load_state(again, ArtifactStore(store.root / "other"))["encoder.weight"])


@pytest.mark.slow
def test_published_weights_are_stored_with_the_models_own_keys(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    state = shufflenet_v2_x0_5(weights=None).state_dict()
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(state, folder / ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url.rpartition("/")[2])
    dataset = DatasetRef(kind="images", digest="0" * 64, splits={"test": 1}, classes=1000)
    workload = image_workload(
        model={"kind": "torchvision", "name": "shufflenet_v2_x0_5"},
        checkpoint={"kind": "torchvision-weights", "weights": "ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1"},
    )
    found = load_state(checkpoint.obtain(workload, dataset, Workspace(store)), store)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in state.items())

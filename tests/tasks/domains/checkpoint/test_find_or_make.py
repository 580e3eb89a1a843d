from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.weights import build_blank
from tasks.domains.checkpoint import find_or_make
from tasks.values.job import Workspace
from tasks.values.refs import CheckpointRef, DatasetRef
from tests.tasks.vision_workloads import image_workload

DATASET = DatasetRef(kind="images", digest="0" * 64, splits={"test": 3}, classes=3, sample_shape=(3, 4, 4))
WORKLOAD = image_workload(
    model={"kind": "factory", "factory": "tests.tasks.domains.checkpoint.test_find_or_make:network"},
    checkpoint={"kind": "uri", "uri": "weights.pth"},
)
FEATURES = {"input": 4}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES["input"], 3), nn.BatchNorm1d(3))


def found_or_made(store: ArtifactStore, made: list[int]) -> CheckpointRef:
    def make() -> Mapping[str, Tensor]:
        made.append(1)
        return network().state_dict()

    return find_or_make(WORKLOAD, DATASET, Workspace(store), {"sha256": "the same"}, make)


def test_an_artifact_in_the_store_is_not_made_again(tmp_path: Path) -> None:
    store, made = ArtifactStore(tmp_path), list[int]()
    first = found_or_made(store, made)
    assert found_or_made(store, made) == first
    assert len(made) == 1
    # A batch norm's count of batches is a scalar.
    assert first.parameters == 4 * 3 + 3 + 4 * 3 + 1


def test_a_model_that_has_changed_without_its_code_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, made = ArtifactStore(tmp_path), list[int]()
    first = found_or_made(store, made)
    monkeypatch.setitem(FEATURES, "input", 5)
    assert found_or_made(store, made).digest != first.digest
    assert len(made) == 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_weights_of_a_type_that_the_model_lacks_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    state = network().state_dict() | {"0.weight": torch.zeros(3, 4).to(dtype)}
    with pytest.raises(InputError, match=r"0\.weight: values of \w+ need a scale"):
        find_or_make(WORKLOAD, DATASET, Workspace(ArtifactStore(tmp_path)), {}, lambda: state)


class StochasticDepth(nn.Module):
    """Asks for values while it is built, which a tensor on the meta device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = torch.linspace(0, 0.1, 4).tolist()
        self.fc = nn.Linear(3, 2)


def test_a_constructor_that_asks_for_values_is_built_all_the_same_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    model = build_blank(StochasticDepth)
    assert {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()} == {
        "fc.weight": (2, 3),
        "fc.bias": (2,),
    }
    assert torch.equal(torch.get_rng_state(), before)

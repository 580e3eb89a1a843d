from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import InputError, StoreError
from tasks.checkpoint import find_or_make
from tasks.data.weights import WEIGHTS_FILE, build_blank, load_state, read_state
from tasks.job import Workspace
from tasks.refs import CheckpointRef, DatasetRef
from tests.tasks.vision_workloads import image_workload

DATASET = DatasetRef(kind="images", digest="0" * 64, splits={"test": 3}, classes=3, sample_shape=(3, 4, 4))
WORKLOAD = image_workload(
    model={"kind": "factory", "factory": "tests.tasks.checkpoint.test_find_or_make:network"},
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


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn], ids=str)
def test_weights_of_a_type_that_the_model_has_not_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    state = network().state_dict() | {"0.weight": torch.zeros(3, 4).to(dtype)}
    with pytest.raises(InputError, match=r"0\.weight: the checkpoint has \[3, 4\] of \w+, the workload \[3, 4\]"):
        find_or_make(WORKLOAD, DATASET, Workspace(ArtifactStore(tmp_path)), {}, lambda: state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.slow
def test_weights_of_other_precisions_become_float_weights_and_that_is_told(dtype: torch.dtype, tmp_path: Path) -> None:
    state = {
        key: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for key, tensor in network().state_dict().items()
    }
    store = ArtifactStore(tmp_path)
    reference = find_or_make(WORKLOAD, DATASET, Workspace(store), {}, lambda: state)
    assert torch.equal(load_state(reference, store)["0.weight"], state["0.weight"].float())
    assert reference.notes == (f"converted {str(dtype).removeprefix('torch.')} values to float32",)
    assert find_or_make(WORKLOAD, DATASET, Workspace(store), {}, lambda: state).notes == ()


def without_counts(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in state.items() if not key.endswith("num_batches_tracked")}


@pytest.mark.parametrize("how", ["no metadata", "old version", "safetensors"])
@pytest.mark.slow
def test_an_old_file_without_counts_of_batches_is_loaded_as_pytorch_loads_it(how: str, tmp_path: Path) -> None:
    state, path = OrderedDict(without_counts(network().state_dict())), tmp_path / "w.pth"
    if how == "old version":
        state._metadata = OrderedDict({"": {"version": 1}, "1": {"version": 1}})  # type: ignore[attr-defined]
    save_file(state, path) if how == "safetensors" else torch.save(state, path)
    store = ArtifactStore(tmp_path)
    reference = find_or_make(WORKLOAD, DATASET, Workspace(store), {}, lambda: read_state(path))
    (note,) = reference.notes
    assert note == "set 1 x num_batches_tracked, which files from before PyTorch 0.4.1 lack, to 0"
    expected = network()
    expected.load_state_dict(state)  # PyTorch itself forgives it
    found = load_state(reference, store)
    assert found.keys() == expected.state_dict().keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.state_dict().items())


def test_a_new_file_without_counts_of_batches_is_refused_as_pytorch_refuses_it(tmp_path: Path) -> None:
    state = network().state_dict()
    del state["1.num_batches_tracked"]
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(RuntimeError, match="num_batches_tracked"):
        network().load_state_dict(torch.load(tmp_path / "w.pth"))
    with pytest.raises(InputError, match=r"1 missing:\n    1\.num_batches_tracked \[\] of int64"):
        find_or_make(WORKLOAD, DATASET, Workspace(ArtifactStore(tmp_path)), {}, lambda: read_state(tmp_path / "w.pth"))


def test_nothing_is_copied_of_a_state_that_does_not_fit(tmp_path: Path) -> None:
    state = network().state_dict() | {"0.weight": torch.zeros(1).expand(4_000_000_000, 1000)}
    with pytest.raises(InputError, match=r"0\.weight: the checkpoint has \[4000000000, 1000\]"):
        find_or_make(WORKLOAD, DATASET, Workspace(ArtifactStore(tmp_path)), {}, lambda: state)


def test_of_thousands_of_keys_that_do_not_fit_a_few_are_named(tmp_path: Path) -> None:
    state = network().state_dict() | {f"extra.{number}" + "x" * 10_000: torch.zeros(1) for number in range(5000)}
    with pytest.raises(InputError, match=r"and 4990 more") as refused:
        find_or_make(WORKLOAD, DATASET, Workspace(ArtifactStore(tmp_path)), {}, lambda: state)
    assert len(str(refused.value)) < 10_000


@given(cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_was_cut_off_anywhere_is_named(cut: float, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    reference = found_or_made(store, [])
    path = store.path(reference.kind, reference.digest) / WEIGHTS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(StoreError, match=r"is damaged: weights\.safetensors is not .*Remove it"):
        found_or_made(store, [])
    with pytest.raises(StoreError, match=r"is damaged: weights\.safetensors is not .*Remove it"):
        load_state(reference, store)
    path.write_bytes(whole)


def test_a_full_disk_is_told_as_the_store_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(StoreError, match=r"cannot be written: No space left on device\."):
        found_or_made(ArtifactStore(tmp_path), [])
    assert not list((tmp_path / "artifacts").rglob("*.safetensors"))


class StochasticDepth(nn.Module):
    """Asks for values while it is built, which a tensor on the meta device does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = torch.linspace(0, 0.1, 4).tolist()
        self.fc = nn.Linear(3, 2)


def test_a_model_is_built_without_memory_for_its_weights() -> None:
    assert build_blank(lambda: nn.Linear(3, 2)).weight.is_meta


def test_a_constructor_that_asks_for_values_is_built_all_the_same_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    model = build_blank(StochasticDepth)
    assert {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()} == {
        "fc.weight": (2, 3),
        "fc.bias": (2,),
    }
    assert torch.equal(torch.get_rng_state(), before)


def test_a_constructor_that_fails_anywhere_fails_with_its_own_error() -> None:
    def broken() -> nn.Module:
        raise ValueError("no such size")

    with pytest.raises(ValueError, match="no such size"):
        build_blank(broken)

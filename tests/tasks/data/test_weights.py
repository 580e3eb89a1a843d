from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models import mnasnet0_5

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.weights import WEIGHTS_FILE, StateDict, load_checkpoint, read_state
from tasks.values.refs import CheckpointRef

STATE = {"encoder.weight": torch.arange(6.0).view(2, 3), "bias": torch.tensor([1.5])}


class Malicious:
    """Unpickled in the usual way, this makes a folder: by a function that torch never calls, or by any other."""

    def __init__(self, path: Path, function: Callable[..., object] = os.mkdir) -> None:
        self.function, self.argument = function, str(path)
        if function is exec:
            self.argument = f"import os; os.mkdir({self.argument!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, (self.argument,)


def assert_is_state(found: dict[str, Tensor]) -> None:
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in STATE.items())


def test_tensors_are_left_out_by_their_names_or_by_those_of_their_modules() -> None:
    state = StateDict({**STATE, "head.bias": STATE["bias"], "head2.bias": STATE["bias"]})
    left = state.without(("head", "head2.bias"))
    assert list(left) == list(STATE)
    assert left.notes == ("left out 2 of 4 tensors, which checkpoint.leave_out names",)
    with pytest.raises(InputError, match=r"names tensors that the file does not contain: hea, head\.bias\.x\."):
        state.without(("hea", "bias", "head.bias.x"))


def test_options_and_scores_stored_with_the_weights_are_ignored(tmp_path: Path) -> None:
    options = argparse.Namespace(lr=0.1, name="run")
    torch.save({"state_dict": STATE, "args": options, "best": np.float64(71.5)}, tmp_path / "weights.pt")
    assert list(read_state(tmp_path / "weights.pt")) == list(STATE)


def test_a_state_dict_under_a_name_of_the_users_own_is_found(tmp_path: Path) -> None:
    key = "net_G"
    optimizer = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]}
    torch.save({"step": 3, key: STATE, "optimizer_state": optimizer}, tmp_path / "weights.pth")
    found = read_state(tmp_path / "weights.pth")
    assert_is_state(found)
    assert found.notes == (f'used the weights under "{key}"',)
    torch.save({"step": 3, "critic": STATE, f"{key}_ema": STATE}, tmp_path / "weights.pth")
    assert read_state(tmp_path / "weights.pth").notes == (f'used the weights under "{key}_ema" and not "critic"',)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("function", [os.mkdir, exec], ids=["mkdir", "exec"])
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_a_pickle_that_would_run_code_is_refused_and_its_code_does_not_run(
    form: str, function: Callable[..., object], tmp_path: Path
) -> None:
    made, path = tmp_path / "made by the pickle", tmp_path / "weights.pth"
    content = {**STATE, "extra": Malicious(made, function)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(InputError, match=r"weights\.pth was refused, because loading the file could run code"):
        read_state(path)
    assert not made.exists()
    # The same file does run code where it is loaded without care: the test would notice.
    if form == "pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert made.is_dir()


@pytest.mark.parametrize(
    "content", [{"epoch": 3}, [torch.zeros(1)], torch.zeros(1), {}], ids=["dict", "list", "tensor", "empty"]
)
def test_files_without_a_state_dict_are_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(InputError, match="not a state dict"):
        read_state(tmp_path / "weights.pth")


def test_a_model_that_requires_the_versions_of_its_layout_is_loaded(tmp_path: Path) -> None:
    store, model, other = ArtifactStore(tmp_path), mnasnet0_5(), mnasnet0_5()
    checkpoint = CheckpointRef(kind="checkpoint", digest="a" * 64, parameters=1)
    with store.create(checkpoint.kind, checkpoint.digest, {}) as folder:
        save_file(dict(model.state_dict()), folder / WEIGHTS_FILE)
    load_checkpoint(other, checkpoint, store)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())

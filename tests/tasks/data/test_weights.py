from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from storage.errors import InputError
from tasks.data.weights import read_state

STATE = {"encoder.weight": torch.arange(6.0).view(2, 3), "bias": torch.tensor([1.5])}


class Malicious:
    """Unpickled in the usual way, this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def assert_is_state(found: dict[str, Tensor]) -> None:
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in STATE.items())


@pytest.mark.parametrize(
    "wrapped",
    [
        STATE,
        OrderedDict(STATE),
        {"state_dict": STATE, "epoch": 3},
        {"model": STATE, "optimizer": {"lr": 0.1}},
        {"model_state_dict": {f"module.{key}": tensor for key, tensor in STATE.items()}},
        {f"module._orig_mod.{key}": tensor for key, tensor in STATE.items()},
        {f"_orig_mod.{key}": nn.Parameter(tensor) for key, tensor in STATE.items()},
        {f"_orig_mod.module.{key}": tensor for key, tensor in STATE.items()},
        {"state_dict": {"model": STATE}, "best": 1.0},
        {"ema": {f"module.{key}": tensor for key, tensor in STATE.items()}, "updates": 7},
        {"n_averaged": torch.tensor(3), **{f"module.{key}": tensor for key, tensor in STATE.items()}},
    ],
    ids=[
        "plain",
        "ordered",
        "state_dict",
        "model",
        "data-parallel",
        "both-prefixes",
        "compiled",
        "prefixes-turned",
        "nested",
        "ema",
        "averaged",
    ],
)
@pytest.mark.slow
def test_state_dicts_are_found_in_what_training_scripts_put_around_them(wrapped: object, tmp_path: Path) -> None:
    torch.save(wrapped, tmp_path / "weights.pth")
    assert_is_state(read_state(tmp_path / "weights.pth"))


def test_what_was_taken_off_is_told_and_which_of_two_levels_was_taken(tmp_path: Path) -> None:
    wrapped = {f"module.{key}": tensor for key, tensor in STATE.items()}
    torch.save({"ema": STATE, "model": wrapped}, tmp_path / "w.pth")
    assert read_state(tmp_path / "w.pth").notes == (
        'took the weights under "model" and not "ema", which is there too',
        'took the prefix "module." off every key',
    )
    torch.save(STATE, tmp_path / "plain.pth")
    assert read_state(tmp_path / "plain.pth").notes == ()


def test_the_versions_that_a_file_notes_follow_its_keys(tmp_path: Path) -> None:
    torch.save(nn.DataParallel(nn.Sequential(nn.BatchNorm1d(2))).state_dict(), tmp_path / "w.pth")
    assert read_state(tmp_path / "w.pth").versions["0"] == 2


def test_the_content_decides_the_format_and_not_the_name(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "weights.pth")
    assert_is_state(read_state(tmp_path / "weights.pth"))
    torch.save(STATE, tmp_path / "old.safetensors", _use_new_zipfile_serialization=False)
    assert_is_state(read_state(tmp_path / "old.safetensors"))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_a_pickle_that_would_run_code_is_refused_and_its_code_does_not_run(form: str, tmp_path: Path) -> None:
    made, path = tmp_path / "made by the pickle", tmp_path / "weights.pth"
    content = {**STATE, "extra": Malicious(made)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(InputError, match=r"weights\.pth: refused, because loading it could run code"):
        read_state(path)
    assert not made.exists()
    # The same file does run code where it is loaded without care: the test would notice.
    if form == "pickle":
        pickle.loads(path.read_bytes())
    else:
        torch.load(path, weights_only=False)
    assert made.is_dir()


def test_a_whole_pickled_model_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "model.pth")
    with pytest.raises(InputError, match="state_dict"):
        read_state(tmp_path / "model.pth")


@pytest.mark.parametrize(
    "content", [b"", b"no weights", b"\x80\x02", b"PK\x03\x04broken", b"\x10" + bytes(7) + b"{broken json    "]
)
@pytest.mark.slow
def test_broken_files_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(InputError, match=r"s3://bucket/weights\.pth"):
        read_state(tmp_path / "weights.pth", "s3://bucket/weights.pth")


def test_a_cut_off_file_is_named(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "whole.pth")
    whole = (tmp_path / "whole.pth").read_bytes()
    (tmp_path / "weights.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read as a state dict"):
        read_state(tmp_path / "weights.pth")


@pytest.mark.parametrize(
    "content", [{"epoch": 3}, [torch.zeros(1)], torch.zeros(1), {}], ids=["dict", "list", "tensor", "empty"]
)
def test_files_without_a_state_dict_are_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(InputError, match="holds no state dict"):
        read_state(tmp_path / "weights.pth")


@given(share=st.floats(0, 1, exclude_max=True), legacy=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_file_cut_off_anywhere_is_one_clear_error(share: float, legacy: bool) -> None:
    stream = io.BytesIO()
    torch.save(STATE, stream, _use_new_zipfile_serialization=not legacy)
    whole = stream.getvalue()
    with TemporaryDirectory() as folder:
        path = Path(folder, "weights.pth")
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(InputError, match=r"weights\.pth: "):
            read_state(path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    ],
    ids=["sparse", "meta", "quantized"],
)
def test_tensors_that_are_not_plain_are_refused_by_name(make: Callable[[], Tensor], tmp_path: Path) -> None:
    torch.save({**STATE, "odd": make()}, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"sparse, nested, quantized or without values: odd\."):
        read_state(tmp_path / "w.pth")


def test_a_dict_that_holds_itself_is_refused(tmp_path: Path) -> None:
    endless: dict[str, Any] = {}
    endless["model"] = endless
    torch.save(endless, tmp_path / "weights.pth")
    with pytest.raises(InputError, match="holds no state dict"):
        read_state(tmp_path / "weights.pth")

"""Small files that claim large tensors: refused before memory is taken, with one message."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from storage.errors import InputError
from tasks.data.weights import read_state


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(1).expand(4_000_000_000),
        lambda: torch.zeros(1).expand(60_000, 60_000),
        lambda: torch.zeros(100).as_strided((1 << 40,), (0,)),
        lambda: torch.arange(6.0).as_strided((4, 3), (1, 1)),
    ],
    ids=["expanded", "matrix", "strided", "overlapping"],
)
@pytest.mark.slow
def test_a_tensor_with_more_values_than_its_file_holds_is_refused(
    make: Callable[[], Tensor], is_zip: bool, tmp_path: Path
) -> None:
    torch.save({"big": make(), "small": torch.zeros(2)}, tmp_path / "w.pth", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(InputError, match=r"These tensors in .*w\.pth have more values than the file contains: big\."):
        read_state(tmp_path / "w.pth")


@pytest.mark.slow
def test_a_compressed_zip_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1 << 26)}, tmp_path / "plain.pth")
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as plain,
        zipfile.ZipFile(tmp_path / "w.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert (tmp_path / "w.pth").stat().st_size < 1_000_000
    with pytest.raises(InputError, match=r"w\.pth cannot be read as a state dict: the file is compressed"):
        read_state(tmp_path / "w.pth")


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_a_storage_that_is_said_to_be_larger_than_it_is_is_refused(is_zip: bool, tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1000)}, tmp_path / "w.pth", _use_new_zipfile_serialization=is_zip)
    content = (tmp_path / "w.pth").read_bytes()
    # Pickle's BININT2 of 1000, as BININT2 of 65535: the storage's length and the tensor's.
    forged = content.replace(b"M\xe8\x03", b"M\xff\xff")
    assert forged != content
    (tmp_path / "w.pth").write_bytes(forged)
    with pytest.raises(InputError, match=r"w\.pth cannot be read"):
        read_state(tmp_path / "w.pth")

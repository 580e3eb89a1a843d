"""Splits as they are written and read back: dense, pictures, and ragged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.samples import (
    TARGET,
    ColumnWriter,
    Description,
    Samples,
    find_or_write,
    load_samples,
    load_test,
    write_split,
)
from tasks.values.refs import DatasetRef

SHAPE = (3, 4, 5)


def planted(root: Path, mean: tuple[float, ...] = (0.5,) * 3) -> tuple[DatasetRef, ArtifactStore]:
    """Five pictures whose value is their label, and one to calibrate with."""

    def fill(folder: Path) -> Description:
        pictures = torch.arange(5, dtype=torch.uint8).view(-1, 1, 1, 1).expand(5, *SHAPE)
        write_split(folder, "test", {"images": pictures, TARGET: torch.arange(5)})
        write_split(folder, "calibration", {"images": pictures[:1], TARGET: torch.zeros(1).long()})
        splits = {"test": 5, "calibration": 1}
        return Description(splits=splits, inputs=("images",), mean=mean, std=(0.25,) * 3, skipped=("a",))

    store = ArtifactStore(root)
    return find_or_write(store, {"mean": mean}, fill), store


def test_written_samples_are_read_back_mapped_and_in_order(tmp_path: Path) -> None:
    dataset, store = planted(tmp_path)
    split = load_samples(dataset, "test", store)
    assert split["images"].dtype == torch.uint8
    assert split["images"].shape == (5, *SHAPE)
    assert split["images"][:, 0, 0, 0].tolist() == split.target.tolist() == [0, 1, 2, 3, 4]
    assert (dataset.splits, dataset.skipped, len(split)) == ({"test": 5, "calibration": 1}, 1, 5)
    path = store.path(dataset.kind, dataset.digest) / "test.images.npy"
    assert isinstance(np.load(path, mmap_mode="r"), np.memmap)


def test_pictures_are_normalized_per_channel_in_float32(tmp_path: Path) -> None:
    dataset, store = planted(tmp_path, mean=(0.0, 0.5, 0.2))
    (images,) = next(load_samples(dataset, "test", store).batches(5)).inputs
    assert images.dtype == torch.float32
    expected = (4 / 255 - torch.tensor([0.0, 0.5, 0.2])) / 0.25
    torch.testing.assert_close(images[4, :, 0, 0], expected)


def test_a_split_that_is_not_there_is_named(tmp_path: Path) -> None:
    dataset, store = planted(tmp_path)
    expected = r"not contain the train split\. Use one of these splits: test, calibration"
    with pytest.raises(InputError, match=expected):
        load_samples(dataset, "train", store)


def written(folder: Path, column: Tensor | list[Tensor]) -> list[Tensor]:
    """The records of a column that was written and read back."""

    def fill(place: Path) -> Description:
        write_split(place, "test", {"x": column})
        return Description(splits={"test": 1})

    store = ArtifactStore(folder)
    dataset = find_or_write(store, {"x": str(folder)}, fill)
    found = load_samples(dataset, "test", store).columns["x"]
    return [found[index] for index in range(len(found))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_every_type_comes_back_to_the_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    found = torch.stack(written(tmp_path / "dense", values))
    assert found.dtype == dtype
    assert torch.equal(found, values)
    ragged = [values[:1], values]
    assert all(map(torch.equal, written(tmp_path / "ragged", ragged), ragged))


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_column_that_grew_is_a_file_of_numpys_own(tmp_path: Path, count: int) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    with ColumnWriter(tmp_path, "test", "images", "|u1", SHAPE) as column:
        for row in rows:
            column.append(row[None])
    np.save(tmp_path / "expected.npy", rows)
    assert (tmp_path / "test.images.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert column.length == count


def drawn(root: Path, split: str, at_most: int, columns: dict[str, Tensor | list[Tensor]], **described: Any) -> Samples:
    """A data set's split as it is read with `at_most`."""

    def fill(folder: Path) -> Description:
        write_split(folder, split, columns)
        return Description(**described)

    store = ArtifactStore(root)
    dataset = find_or_write(store, described, fill)
    return load_samples(dataset.model_copy(update={"at_most": at_most}), split, store)


def test_a_sample_is_drawn_with_its_targets_and_is_the_same_each_time(tmp_path: Path) -> None:
    columns = {"values": torch.arange(100.0), TARGET: torch.arange(100)}
    first, again, every = (
        drawn(tmp_path, "test", count, columns, splits={"test": 100}, inputs=("values",)) for count in (10, 10, 100)
    )
    assert (len(first), len(every)) == (10, 100)
    assert first["values"].tolist() == first.target.tolist() == again.target.tolist() == sorted(first.target.tolist())
    # Not the first ones, nor every tenth: labels may be in any order.
    assert len({int(target) % 10 for target in first.target}) > 3
    assert len(set(first.target.diff().tolist())) > 3
    whole = drawn(tmp_path, "calibration", 10, columns, splits={"calibration": 100}, inputs=("values",))
    assert len(whole) == 100


def test_of_a_stream_of_tokens_the_first_ones_are_read(tmp_path: Path) -> None:
    found = drawn(tmp_path, "test", 3, {"tokens": torch.arange(100)}, splits={"test": 100}, vocabulary=100)
    assert found["tokens"].tolist() == list(range(48))


def test_records_of_any_shapes_are_drawn_completely(tmp_path: Path) -> None:
    texts = [torch.full((length,), length) for length in range(1, 31)]
    found = drawn(tmp_path / "texts", "test", 4, {"input_ids": texts}, splits={"test": 30}, vocabulary=40)
    column = found.columns["input_ids"]
    assert (len(found), len(column)) == (4, 4)
    assert all(set(column[row].tolist()) == {len(column[row])} for row in range(4))
    batches = [torch.full((8 if number < 12 else 4, 1), number) for number in range(13)]
    batched = drawn(
        tmp_path / "batches", "test", 20, {"values": batches, TARGET: batches}, splits={"test": 100},
        inputs=("values",), collated=True,
    )  # fmt: skip
    assert len(batched) == sum(batch.size for batch in batched.batches(1)) >= 20
    assert all(torch.equal(batch.inputs[0], batch.target) for batch in batched.batches(1) if batch.target is not None)


def test_another_split_is_read_instead_of_the_test_split(tmp_path: Path) -> None:
    columns = {"values": torch.arange(100.0), TARGET: torch.arange(100)}

    def fill(folder: Path) -> Description:
        for split, length in (("test", 5), ("valid", 100), ("calibration", 3)):
            write_split(folder, split, {name: column[:length] for name, column in columns.items()})
        return Description(splits={"test": 5, "valid": 100, "calibration": 3}, inputs=("values",))

    store = ArtifactStore(tmp_path)
    dataset = find_or_write(store, {}, fill).model_copy(update={"judged_on": "valid"})
    assert [len(load_samples(dataset, split, store)) for split in ("test", "valid", "calibration")] == [100, 100, 3]
    few = dataset.model_copy(update={"at_most": 10})
    assert len(load_samples(few, "test", store)) == len(load_test(few, store, singly=True)) == 10
    assert len(load_samples(few.as_prepared(), "test", store)) == 5

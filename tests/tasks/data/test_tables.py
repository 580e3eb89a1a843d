from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.data.samples import load_samples, read_description
from tasks.values.refs import DatasetRef
from tests.tasks.domains.custom.own import own, write
from tests.tasks.pipeline import prepare

COLUMNS: dict[str, list[Any]] = {
    "a": list(range(100)),
    "b": [index**2 / 7 for index in range(100)],
    "kind": ["big" if index > 40 else "small" for index in range(100)],
    "value": [index / 3 for index in range(100)],
    "part": ["train"] * 60 + ["valid"] * 10 + ["calibration"] * 10 + ["test"] * 20,
}


def prepared(folder: Path, columns: dict[str, list[Any]] = COLUMNS, **keys: Any) -> tuple[DatasetRef, ArtifactStore]:
    write(folder)
    kind = keys.setdefault("kind", "parquet")
    table, path = pa.table(columns), folder / f"table.{kind}"
    match kind:
        case "parquet":
            pq.write_table(table, path)
        case "csv":
            pyarrow.csv.write_csv(table, path)
        case "jsonl":
            path.write_text("\n".join(json.dumps(row) for row in table.to_pylist()), encoding="utf-8")
    data = {"uri": str(path), "features": ["a", "b"], "target": "kind", **keys}
    store = ArtifactStore(folder)
    return prepare(own(folder, data=data, model={"kind": "factory", "factory": "own_code:Linear"}), store), store


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.slow
def test_features_are_standardized_by_the_train_split(tmp_path: Path, kind: str) -> None:
    dataset, store = prepared(tmp_path, kind=kind, split="part")
    assert dataset.splits == {"train": 60, "valid": 10, "calibration": 10, "test": 20}
    test = load_samples(dataset, "test", store)
    raw = torch.tensor([COLUMNS["a"], COLUMNS["b"]], dtype=torch.float64).T
    train = raw[:60]
    expected = (raw[80:] - train.mean(0)) / train.std(0, correction=0)
    torch.testing.assert_close(test["rows"], expected.float())
    assert read_description(dataset, store).classes == ("big", "small")
    assert test.target.tolist() == [0] * 20


def test_shares_are_drawn_once_for_a_seed_and_overlap_in_nothing_but_calibration(tmp_path: Path) -> None:
    dataset, store = prepared(tmp_path, valid_share=0.1, calibration=16, standardize=False)
    assert dataset.splits == {"train": 70, "valid": 10, "calibration": 16, "test": 20}
    rows = {split: set(load_samples(dataset, split, store)["rows"][:, 0].tolist()) for split in dataset.splits}
    assert rows["calibration"] < rows["train"]
    assert rows["train"] | rows["valid"] | rows["test"] == set(range(100))
    assert prepared(tmp_path, valid_share=0.1, calibration=16, standardize=False)[0] == dataset
    assert prepared(tmp_path, valid_share=0.1, calibration=16, standardize=False, seed=1)[0] != dataset


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        (COLUMNS, {"features": ["a", "c"]}, "lacks these columns: c.*: a, b, kind"),
        (COLUMNS, {"features": ["a", "kind"], "target": "value"}, '"kind" of type string cannot be converted'),
        (COLUMNS | {"b": [None] * 100}, {}, "missing values in these columns: b"),
        (COLUMNS | {"b": [float("nan")] * 100}, {}, '"b" contains NaN'),
        (COLUMNS | {"part": ["dev"] * 100}, {"split": "part"}, "unknown splits: dev"),
        (COLUMNS | {"part": ["train"] * 100}, {"split": "part"}, "for these splits: test"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_clear_message(
    tmp_path: Path, columns: dict[str, list[Any]], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(NightquantError, match=message):
        prepared(tmp_path, columns, **keys)


def test_a_file_that_is_not_a_table_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "table.parquet").write_text("not one")
    data = {"kind": "parquet", "uri": str(tmp_path / "table.parquet"), "features": ["a"], "target": "b"}
    with pytest.raises(NightquantError, match=r"table\.parquet cannot be read as a parquet file"):
        prepare(own(tmp_path, data=data), ArtifactStore(tmp_path))


@pytest.mark.parametrize(
    "values",
    [
        [14.62] * 100, [0.1 + 0.2, 0.3] * 50, [1e15 + 0.1] * 100, [0.0] * 100,
        pa.array([14.62, 14.620001] * 50, pa.float32()), [7] * 100,
    ],
    ids=["decimal", "rounded", "large", "zero", "float32", "integer"],
)  # fmt: skip
def test_a_column_that_is_constant_up_to_rounding_is_not_scaled(tmp_path: Path, values: Any) -> None:
    dataset, store = prepared(tmp_path, COLUMNS | {"a": values}, split="part")
    assert read_description(dataset, store).std[0] == 1.0
    assert load_samples(dataset, "test", store)["rows"][:, 0].abs().max() <= 1e-3
    assert dataset.notes == ("these columns are constant in the train split and were not scaled: a",)

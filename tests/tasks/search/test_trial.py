"""A trial's measurements as the gate would see them, and its row."""

from __future__ import annotations

from datetime import date

import pytest

from storage.errors import InputError
from storage.results import QualityUnit
from tasks.search.trial import Drop, Selection, Speed, Trial
from tasks.values.job import Job
from tasks.values.refs import ArtifactRef, CheckpointRef, DatasetRef
from tasks.values.results import Comparison, Evaluation, RunInfo
from tasks.workload.recipe import Recipe
from tests.tasks.workload.test_rules import workload


def evaluation(quality: float, *, higher: bool) -> Evaluation:
    return Evaluation(
        recipe="float", runtime="eager", quality_metric="m", quality=quality, higher_is_better=higher, metrics={},
        quality_batched=quality, samples=30, outputs=ArtifactRef(kind="outputs", digest=""),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "higher", "expected"),
    [
        ("absolute", True, (2.0, 1.0, 3.0)),
        ("absolute", False, (-2.0, -3.0, -1.0)),
        ("relative", True, (0.025, 0.0125, 0.0375)),
        ("relative", False, (-0.025, -0.0375, -0.0125)),
    ],
)
def test_a_drop_is_positive_if_quality_is_lost(
    unit: QualityUnit, higher: bool, expected: tuple[float, float, float]
) -> None:
    compared = Comparison(quality_difference=-2, quality_difference_low=-3, quality_difference_high=-1)
    drop = Drop.of(compared, evaluation(80, higher=higher), unit)
    assert (drop.value, drop.low, drop.high) == pytest.approx(expected)
    assert drop.samples == 30


def test_a_row_has_every_column_and_unmeasured_values_are_missing() -> None:
    recipe = Recipe.model_validate({"name": "int8", "method": "dynamic"})
    trial = Trial(number=3, recipe=recipe, runtime="torchscript", origin="space")
    run = RunInfo(run_id="r", night=date(2026, 1, 2), profile="quick")
    row = trial.row(run, "w", "valid", "absolute", "f")
    assert row["parent"] is row["size_bytes"] is row["speedup_low"] is None
    measured = trial.model_copy(
        update={
            "drop": Drop(value=2, low=1, high=3, samples=9),
            "speed": Speed(value=1.2, low=1.1, high=1.3, launches=2),
            "size_bytes": 7,
            "parent": "a/b",
            "reason": "why",
        }
    ).row(run, "w", "valid", "absolute", "f")
    assert list(measured) == list(row)
    assert None not in measured.values()
    assert (measured["trial"], measured["quality_drop_high"], measured["speedup_low"]) == (3, 3, 1.1)


@pytest.mark.parametrize(
    ("splits", "split", "samples"),
    [
        ({"test": 50, "valid": 2000, "train": 9}, "valid", (256, 1024, 2000)),
        ({"test": 50, "valid": 1024}, "valid", (256, 1024)),
        ({"test": 500, "valid": 0, "train": 9000}, "train", (256, 500)),
        ({"test": 500, "calibration": 100}, "calibration", (100,)),
    ],
)
def test_recipes_are_selected_on_data_that_the_gate_does_not_use(
    splits: dict[str, int], split: str, samples: tuple[int, ...]
) -> None:
    dataset = DatasetRef(kind="samples", digest="", splits=splits)
    selection = Selection.of(dataset)
    assert (selection.split, selection.samples) == (split, samples)
    job = selection.job(Job(workload(), dataset, CheckpointRef(kind="checkpoint", digest="", parameters=1)), 7)
    assert (job.dataset.judged_on, job.dataset.at_most) == (split, 7)
    assert job.dataset.as_prepared() == dataset
    assert job.dataset.model_dump() == dataset.model_dump()


def test_without_other_data_than_the_test_split_a_search_is_refused() -> None:
    with pytest.raises(InputError, match=r"\"calibration\" split, but the data set has only these splits: test\."):
        Selection.of(DatasetRef(kind="samples", digest="", splits={"test": 50}))

from __future__ import annotations

import json
from typing import Any

import pytest

from storage.results.history import changes_between

OLD, NEW = (json.dumps({"torch": torch}) for torch in ("2.14.0", "2.15.0"))
SAME = {
    "machine": "m", "environment": OLD, "data_digest": "d", "checkpoint_digest": "c", "calibration_digest": None,
    "recipe_digest": "r", "source_digest": "s", "artifact_digest": "a",
}  # fmt: skip


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ({}, {}),
        ({"machine": "n"}, {"machine": "another machine"}),
        ({"environment": NEW}, {"environment": "environment: torch 2.14.0 → 2.15.0"}),
        ({"environment": json.dumps({})}, {"environment": "environment: torch 2.14.0 → missing"}),
        ({"environment": None}, {}),
        ({"data_digest": "e", "checkpoint_digest": "x"}, {"data": "data"}),
        ({"checkpoint_digest": "x", "artifact_digest": "b"}, {"checkpoint": "checkpoint"}),
        ({"calibration_digest": "x"}, {}),
        ({"recipe_digest": "x", "source_digest": "y"}, {"recipe": "recipe", "source": "source"}),
        ({"artifact_digest": "b"}, {"artifact": "the candidate's bytes, because of an input that is not recorded"}),
    ],
)
def test_changes_are_named_and_their_consequences_are_not(after: dict[str, Any], found: dict[str, str]) -> None:
    assert changes_between([SAME], SAME | after) == found


@pytest.mark.slow
def test_an_input_that_the_last_night_lacks_is_looked_up_in_earlier_nights() -> None:
    assert changes_between([SAME, SAME | {"recipe_digest": None}], SAME | {"recipe_digest": "x"}) == {
        "recipe": "recipe"
    }
    assert changes_between([], SAME) == {}

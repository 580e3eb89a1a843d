from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from storage.report.night import Search, searches_of
from storage.results.query import open_catalog
from tests.storage.report.nights import LAST, TRIED
from tests.storage.results.rows import trial

NIGHT = dt.date(2026, 3, 1)


def tried(number: int = 1, **changes: Any) -> dict[str, Any]:
    row = trial("r1", NIGHT, number, **changes)
    return row | {"name": f"{row['recipe']}/{row['runtime']}"}


def test_one_sentence_says_what_was_tried_and_spent() -> None:
    rows = tried(1, outcome="chosen", cost_s=700.0), tried(2, outcome="failed", samples=256, is_known=True)
    untried = tried(3, outcome="dropped", samples=None, cost_s=None, split=None)
    assert Search((*rows, untried)).summary == (
        "In 11 min 52 s, the search considered 3 trials (1 measured by an earlier run) on up to 1,024 samples of the "
        "valid split: 1 chosen, 1 failed, 1 dropped."
    )
    assert Search((untried,)).summary == "In 0 s, the search considered 1 trial: 1 dropped."


def test_a_relative_drop_is_a_percentage_and_an_absolute_one_has_the_metrics_unit() -> None:
    absolute, relative = (Search((tried(quality_unit=unit),), "top1") for unit in ("absolute", "relative"))
    assert (absolute.drop(absolute.trials[0]), absolute.unit) == ((0.1, 0.05, 0.15), " points")
    assert (relative.drop(relative.trials[0]), relative.unit) == ((10.0, 5.0, 15.0), "%")
    assert (absolute.bound, relative.bound) == (0.5, 50.0)
    assert absolute.drop(tried(quality_drop=None, quality_drop_low=None, quality_drop_high=None)) is None
    assert absolute.drop(tried(quality_drop_low=None, quality_drop_high=None)) == (0.1, 0.1, 0.1)


@pytest.mark.slow
def test_the_report_shows_a_search_only_where_there_was_one(filled: Path, full_page: Path) -> None:
    page = full_page.read_text(encoding="utf-8")
    assert page.count("<h3>Search</h3>") == 1
    assert f"the search considered {len(TRIED)} trials" in page
    assert f"<summary>{len(TRIED)} trials, in the order of the search</summary>" in page
    assert "spec &lt;i&gt;" in page
    with open_catalog(filled) as connection:
        assert list(searches_of(connection, LAST)) == ["resnet18"]

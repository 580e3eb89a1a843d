from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.report.search import LOOKS, Search, searches_of
from storage.results import number
from storage.results.query import open_catalog
from tests.storage.report.nights import LAST, TRIED
from tests.storage.results.rows import trial

NIGHT = dt.date(2026, 3, 1)


def tried(number: int = 1, **changes: Any) -> dict[str, Any]:
    row = trial("r1", NIGHT, number, **changes)
    return row | {"name": f"{row['recipe']}/{row['runtime']}"}


numbers = st.one_of(st.none(), st.integers(1, 6))
searches = st.builds(
    lambda objective, rows: Search(
        tuple(
            tried(index, objective=objective, outcome=outcome, speedup=speedup, size_bytes=size)
            for index, (outcome, speedup, size) in enumerate(rows, 1)
        )
    ),
    st.sampled_from(["fastest", "smallest", "cheapest"]),
    st.lists(st.tuples(st.sampled_from(list(LOOKS)), numbers, numbers), min_size=1, max_size=9),
)


@given(searches)
def test_each_step_of_the_path_passes_and_is_better_than_the_last_and_nothing_that_passes_beats_the_end(
    search: Search,
) -> None:
    def worse(row: Any) -> float:
        value = number(row, search.ranks_by)
        assert value is not None
        return value if search.ranks_by == "size_bytes" else -value

    steps = [worse(row) for row in search.path]
    assert steps == sorted(set(steps), reverse=True)
    passing = [row for row in search.trials if row["outcome"] in ("chosen", "passing")]
    measured = [row for row in passing if row[search.ranks_by] is not None]
    assert all(row in passing for row in search.path)
    assert [row for row in search.trials if row in search.path] == list(search.path)
    assert min(steps, default=None) == min(map(worse, measured), default=None)
    assert search.path[:1] == tuple(measured[:1])


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


def test_the_picture_in_words_names_the_bound_and_the_path() -> None:
    search = Search((tried(1, speedup=2.0), tried(2, speedup=1.5), tried(3, speedup=2.5, outcome="chosen")), "top1")
    assert search.description == (
        "3 trials. A trial passes if its quality drops by at most 0.5 points. Best trials so far, in order: "
        "1. static-1/onnxruntime, 2.00×; 2. static-3/onnxruntime, 2.50×. The table below lists every trial."
    )
    assert "No trial passes." in Search((tried(outcome="failed", quality_bound=None),)).description


@pytest.mark.slow
def test_the_report_shows_a_search_only_where_there_was_one(filled: Path, full_page: Path) -> None:
    page = full_page.read_text(encoding="utf-8")
    assert page.count("<h3>Search</h3>") == 1
    assert f"the search considered {len(TRIED)} trials" in page
    assert f"<summary>{len(TRIED)} trials, in the order of the search</summary>" in page
    assert "spec &lt;i&gt;" in page
    with open_catalog(filled) as connection:
        assert list(searches_of(connection, LAST)) == ["resnet18"]

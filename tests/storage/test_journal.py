"""What a search's journal remembers across kills, and what a later search finds of it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import StoreError
from storage.journal import Answer, Journal

DIGEST, OTHER = "a" * 64, "b" * 64
HOST = "f" * 64
COSTS = st.integers(0, 1000).map(float)
# What a process does between its start and its kill: it begins or goes on, answers questions, and perhaps ends.
PROCESSES = st.lists(
    st.tuples(st.lists(st.tuples(st.sampled_from("abcdef"), COSTS), max_size=4), st.booleans()), max_size=5
)


def answer(question: str, cost_s: float = 1.0, **value: float) -> Answer:
    return Answer(question=question, value=dict(value), cost_s=cost_s)


@settings(max_examples=30)  # each example writes files
@given(PROCESSES)
def test_every_answer_survives_every_kill_and_a_budget_counts_what_was_spent_since_its_beginning(
    processes: list[tuple[list[tuple[str, float]], bool]],
) -> None:
    known: dict[str, float] = {}
    spent = 0.0
    with TemporaryDirectory() as store:
        for answers, ends in processes:
            journal = Journal.read(store, "demo", DIGEST)
            journal.begin(60, HOST)
            assert journal.spent_s == spent
            for question, cost_s in answers:
                journal.add(answer(question, cost_s, value=cost_s))
                known[question] = cost_s
                spent += cost_s
                assert journal.spent_s == spent
            if ends:
                journal.end("nothing left")
                spent = 0.0
            again = Journal.read(store, "demo", DIGEST)
            assert {name: found.value["value"] for name in "abcdef" if (found := again.find(name))} == known


def test_a_question_whose_answer_was_not_found_in_time_stays_open_but_its_cost_counts(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path, "demo", DIGEST)
    journal.begin(60, HOST)
    journal.add(Answer(question="build", value=None, cost_s=7.0, duration_s=9.0))
    for known in (journal, Journal.read(tmp_path, "demo", DIGEST)):
        assert (known.find("build"), known.spent_s, [one.duration_s for one in known.answers()]) == (None, 7.0, [9.0])
    journal.add(answer("build"))
    assert Journal.read(tmp_path, "demo", DIGEST).find("build") is not None


def test_an_infinite_interval_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path, "demo", DIGEST)
    journal.begin(60, HOST)
    journal.add(answer("time", high=float("inf")))
    found = Journal.read(tmp_path, "demo", DIGEST).find("time")
    assert found is not None
    assert found.value == {"high": float("inf")}


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    journal = Journal.read(tmp_path, "demo", DIGEST)
    journal.begin(60, HOST)
    journal.add(answer("time"))
    (tmp_path / journal.name).write_text("{")
    with pytest.raises(StoreError, match=r"searches/demo/a+\.jsonl is damaged.*Remove the journal"):
        Journal.read(tmp_path, "demo", DIGEST)

"""The keys of ``[search]``: what they take from the gate, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tasks.workload import Workload
from tasks.workload.gate import Gate, Goal, Search
from tests.tasks.workload.test_rules import workload


def searched(**sections: Any) -> Workload:
    return Workload.model_validate(workload().model_dump(by_alias=False) | sections)


def test_missing_keys_have_the_gates_values() -> None:
    gate = Gate(
        objective="smallest", max_quality_drop=0.5, quality_drop="relative", min_speedup=1.2, min_size_ratio=2.0
    )
    assert Search().goal(gate) == Goal("smallest", 0.5, "relative", 1.2, 2.0)
    own = Search(objective="fastest", max_quality_drop=0.0, quality_drop="absolute")
    assert own.goal(gate) == Goal("fastest", 0.0, "absolute", 1.2, 2.0)
    assert own.goal(Gate()) == Goal("fastest", 0.0, "absolute", 1.0, None)
    assert own.model_copy(update={"objective": "smallest"}).goal(Gate()).min_speedup is None


def test_a_search_without_a_bound_on_quality_is_refused() -> None:
    with pytest.raises(ValidationError, match="set max_quality_drop"):
        searched(search={}, gate={})
    assert searched(search={"max_quality_drop": 1}, gate={}).search == Search(max_quality_drop=1)
    assert searched(search={}, gate={"max_quality_drop": 1}).search == Search()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("methods", ["statik"], "did you mean"),
        ("runtimes", ["openvin"], "did you mean"),
        ("max_quality_drop", -1, "greater than or equal to 0"),
        ("observer", ["histogram"], "not permitted"),
    ],
)
def test_a_wrong_value_is_refused_with_the_right_ones(key: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        searched(search={"max_quality_drop": 1, key: value})

"""Which planted mistakes are left out, because no test could find them."""

from __future__ import annotations

import pytest

from benchmarks.mutants.meaning import meaning_of


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("def f(a: int | None) -> int: ...", "def f(a: int - None) -> str: ..."),
        ('def f():\n    """Say."""\n    return 1', "def f():\n    return 1"),
        ('raise ValueError(f"{a or b}")', 'raise ValueError(f"{a and b}")'),
        ('raise Refused("no", hint=f"{a or b}")', 'raise Refused("no", hint=f"{a and b}")'),
        # An objective is cheapest, fastest or smallest, and a status is failed, ok or skipped.
        ('gate.objective == "cheapest"', 'gate.objective <= "cheapest"'),
        ('row["status"] != "failed"', 'row["status"] > "failed"'),
        ("pointer is None", "pointer == None"),
        ("flags | os.O_CREAT | os.O_EXCL", "flags | os.O_CREAT + os.O_EXCL"),
        ("flags | os.O_CREAT | os.O_EXCL", "flags ^ os.O_CREAT | os.O_EXCL"),
        ("@lru_cache\ndef f(): return 1", "def f(): return 1"),
        ("_TRIES = 20", "_TRIES = 21"),
        ("time.sleep(1)", "time.sleep(2)"),
        ("def f(a, *, b=1): return a", "def f(a, /, b=1): return a"),
        ("@dataclass(frozen=True)\nclass A: ...", "@dataclass(frozen=False)\nclass A: ..."),
    ],
)
def test_what_cannot_change_a_result_means_the_same(source: str, changed: str) -> None:
    assert meaning_of(source) == meaning_of(changed) != ""


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ('gate.objective == "fastest"', 'gate.objective >= "fastest"'),
        ('row["status"] != "ok"', 'row["status"] > "ok"'),
        ('row["workload"] == "ok"', 'row["workload"] <= "ok"'),
        ("pointer is None", "pointer is not None"),
        ("found is after", "found == after"),
        ("first | second", "first ^ second"),
        ("flags | os.O_CREAT", "flags & os.O_CREAT"),
        ('say(f"{a or b}")', 'say(f"{a and b}")'),
        ("_LIMIT = 20", "_LIMIT = 21"),
        ("def f(a, *, b=1): return a", "def f(a, *, b=2): return a"),
    ],
)
def test_what_can_change_a_result_means_something_else(source: str, changed: str) -> None:
    assert meaning_of(source) != meaning_of(changed)


def test_what_is_not_python_means_nothing() -> None:
    assert meaning_of("def f(a, -, b): ...") == ""

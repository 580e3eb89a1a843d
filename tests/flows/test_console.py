"""What a person sees of a run."""

from io import StringIO

import pytest
from rich.console import Console

from flows.console import leaderboard, reporter_for

ERROR = "cannot read [/data/x]: bad value [type=missing, input_value=3] here"


@pytest.mark.parametrize("terminal", [True, False])
def test_brackets_in_an_error_are_shown_as_they_are(terminal):
    console = Console(file=StringIO(), width=200, force_terminal=terminal)
    with reporter_for(console) as reporter:
        reporter.finished("word-lm: evaluate", 1.0, ERROR)
    assert ERROR in console.file.getvalue()


def test_brackets_in_a_rows_error_are_shown_as_they_are():
    row = {
        "workload": "word-lm", "recipe": "float", "runtime": "eager", "attempt": 1, "setting": "primary",
        "is_baseline": True, "status": "failed", "stage": "evaluate", "error": ERROR,
    }  # fmt: skip
    console = Console(file=StringIO(), width=200)
    console.print(leaderboard([row], []))
    cells = [line.split("│")[7].strip() for line in console.file.getvalue().splitlines() if "│" in line]
    assert " ".join(cells) == f"failed (evaluate): {ERROR}"

"""What a person sees of a run."""

from io import StringIO

from rich.console import Console

from flows.console import BarReporter, LineReporter, leaderboard

ERROR = "cannot read [/data/x]: bad value [type=missing, input_value=3] here"


def shown(show):
    console = Console(file=StringIO(), width=200)
    show(console)
    return console.file.getvalue()


def test_brackets_in_an_error_are_shown_as_they_are():
    for reporter in (BarReporter, LineReporter):
        assert ERROR in shown(lambda console, made=reporter: made(console).finished("word-lm: evaluate", 1.0, ERROR))


def test_brackets_in_a_rows_error_are_shown_as_they_are():
    row = {
        "workload": "word-lm", "recipe": "float", "runtime": "eager", "attempt": 1, "setting": "primary",
        "is_baseline": True, "status": "failed", "stage": "evaluate", "error": ERROR,
    }  # fmt: skip
    text = shown(lambda console: console.print(leaderboard([row], [])))
    cells = [line.split("│")[7].strip() for line in text.splitlines() if "│" in line]
    assert " ".join(cells) == f"failed (evaluate): {ERROR}"

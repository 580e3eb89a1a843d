from __future__ import annotations

import subprocess
import sys

import pytest

from tests.prose import CODE, FUNCTION, OTHER, PAGE, ROOT, RULES, findings, of_page, of_python

# For each rule, a text that breaks it and one that does not.
CASES = [
    ("length", PAGE, "one word " * 16, "one word " * 15),
    ("imperative", FUNCTION, "The rows of a night.", "Return the rows of a night."),
    ("imperative", FUNCTION, "Returns the rows.", "Pass the rows on."),
    ("imperative", FUNCTION, "``mse`` for numbers.", "Process a row."),
    ("imperative", FUNCTION, "Only in these numbers", "Accept only these metrics"),
    ("fragment", OTHER, "Of the LSTM.", "Width of the LSTM."),
    ("fragment", OTHER, "Its name.", "Name of the class."),
    ("clause", CODE, "What is signed was checked before.", "What does it cost?"),
    ("clause", PAGE, "The door is open to whoever asks.", "Somebody asks what it costs."),
    ("negation", CODE, '"{name}" is no date.', '"{name}" is not a date.'),
    (
        "negation",
        PAGE,
        "unless it is none of the candidates",
        "there is no candidate, it is no longer new",
    ),
    ("that of", PAGE, "the key and that of the bundle", "the key and the bundle's key"),
    ("possessive", CODE, "ours asks it again", "nightquant's server retries the write"),
    ("conjunction", CODE, "it waits, for it cannot know", "it waits, because it cannot know; wait for it"),
    ("condition", CODE, "None where there is no recipe", "the folder where the files are"),
    ("anew", CODE, "The catalog is built anew.", "The catalog is rebuilt."),
    ("anew", CODE, "The candidate is made once more.", "The candidate is made once; more rows follow."),
    ("dearest", PAGE, "the dearest operator", "the most expensive operator"),
    (
        "hold against",
        CODE,
        "files are held against their digests",
        "the lock is held, and files are checked",
    ),
    ("told", PAGE, "Nobody is told.", "Nobody is notified."),
    ("handed over", CODE, "A bundle was handed over.", "Runtimes hand over a tensor."),
    ("is ended", CODE, "It runs until it is ended.", "A night is stopped. Nights ended early."),
    ("incumbent", PAGE, "the incumbent stays", "the current bundle stays, in `incumbent_stays`"),
]


def broken(kind: str, text: str) -> set[str]:
    if kind == PAGE:
        return {name for _, name, _ in findings(of_page(text))}
    quoted = f'"""{text}"""'
    source = {
        FUNCTION: f"def run():\n    {quoted}\n",
        OTHER: f"class Row:\n    {quoted}\n",
        CODE: f"raise InputError(f{quoted})\n",
    }[kind]
    return {name for _, name, _ in findings(of_python(source))}


@pytest.mark.parametrize(("rule", "kind", "bad", "good"), CASES, ids=lambda value: value if len(value) < 15 else "")
def test_a_rule_finds_its_bad_example_and_passes_its_good_one(rule: str, kind: str, bad: str, good: str) -> None:
    assert rule in broken(kind, bad)
    assert rule not in broken(kind, good)


def test_every_rule_has_an_example() -> None:
    assert {rule for rule, *_ in CASES} == RULES.keys()


MODULE = '''
"""A module."""

import click


class Row:
    """A row.

    Attributes
    ----------
    whoever_told
        Names of those of a night.
    """

    width: int = 1
    """Its width."""

    @property
    def area(self):
        """The area."""


@click.option("--all", help="What is shown.")
def main():
    """Show rows.

    \\b
    Examples:
      told anew
    """
    # A comment of two lines,
    # for it is long.
    raise InputError(f"{1}: told.")  # noqa: told
    width = 1  # where there are none
    # A comment.
'''


def test_docstrings_helps_messages_and_comments_are_read_and_code_is_not() -> None:
    found = {(line, rule) for line, rule, _ in findings(of_python(MODULE))}
    assert found == {
        (13, "that of"), (17, "fragment"), (24, "imperative"), (32, "conjunction"), (34, "told"), (35, "condition"),
    }  # fmt: skip


PAGE_TEXT = """# What is told

Text of a paragraph. What it says
is this; see [what was told](anew.md).

```sh
told anew
```

- whoever comes
<!-- told -->
| heading | told |
| --- | --- |
| What: `a|b` | dearest |
"""


def test_paragraphs_items_and_cells_of_a_page_are_read_and_code_is_not() -> None:
    found = {(line, rule) for line, rule, _ in findings(of_page(PAGE_TEXT))}
    assert found == {(3, "clause"), (3, "told"), (10, "clause"), (12, "told"), (14, "clause"), (14, "dearest")}


def test_a_citation_may_be_long() -> None:
    citation = f'Box, "Some theorems", Annals of {"Mathematical " * 30} Statistics, 1954'
    assert broken(PAGE, citation) == set()
    assert broken(PAGE, citation.replace('"', "")) == {"length"}


def test_only_shows_the_findings_of_one_file() -> None:
    command = [sys.executable, "-m", "tests.prose", "--only", "storage/errors.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    *shown, last = done.stdout.splitlines()
    assert all(line.startswith("storage/errors.py:") for line in shown)
    assert last == f"{len(shown)} findings in {bool(shown):d} files"
    assert done.returncode == bool(shown)

"""Tables for people: rich's, without lines and colours where there is no terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.table import Table
from rich.text import Text


def new_table(title: str, *headings: str, right: Collection[str] = ()) -> Table:
    """Make a table whose cells wrap; the columns of the headings in `right` are numbers."""
    return _with_columns(Table(title=title), headings, right)


def plain_table(*headings: str, right: Collection[str] = ()) -> Table:
    """Make a table without lines, for numbers that are compared down a column; without headings it has no header."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=any(headings), header_style="dim")
    return _with_columns(table, headings, right)


def marked_lines(lines: Iterable[tuple[str, str | Text]], width: int = 1) -> Table:
    """Put texts under each other, each beside its mark, whose column of `width` stays empty where a text wraps."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=width)
    grid.add_column(overflow="fold")
    for mark, text in lines:
        grid.add_row(Text(mark), Text(text) if isinstance(text, str) else text)
    return grid


def _with_columns(table: Table, headings: Sequence[str], right: Collection[str]) -> Table:
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading in right else "left")
    return table

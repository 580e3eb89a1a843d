"""Rows at a terminal: a table where one fits its width, else one record below the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import pyarrow as pa

from storage.results.formats import Grid, count_line, encoded, grid


@dataclass(frozen=True)
class _Layout:
    """How a table saves room: names over two lines, one space between columns, a last column of text below its row."""

    folds_names: bool = False
    gap: int = 2
    hangs_last: bool = False


# From the one that reads best to the one that needs least room.
_LAYOUTS = (
    _Layout(),
    _Layout(folds_names=True),
    _Layout(folds_names=True, hangs_last=True),
    _Layout(folds_names=True, hangs_last=True, gap=1),
)
_INDENT = "    "


def fitted(rows: pa.Table, width: int) -> bytes:
    """Rows as text, no line wider than `width` characters: a table if a layout fits, else records.

    What hangs below its row and the lines of records are cut with "…" where they are longer.
    """
    text = grid(rows)
    fitting = (lines for layout in _LAYOUTS if (lines := _table(text, layout, width)) is not None)
    lines = next(fitting, None) or list(_records(text))
    return encoded(_cut(line, width) for line in [*lines, count_line(rows.num_rows)])


def _table(text: Grid, layout: _Layout, width: int) -> list[str] | None:
    """The table's lines, or None if it does not fit."""
    hangs = layout.hangs_last and len(text.names) > 1 and not text.numeric[-1]
    end = len(text.names) - hangs
    headings = [_folded(name) if layout.folds_names else [name] for name in text.names[:end]]
    columns = zip(headings, zip(*text.cells, strict=True) if text.cells else [()] * len(text.names), strict=False)
    widths = [max(map(len, (*heading, *cells))) for heading, cells in columns]
    if sum(widths) + layout.gap * (len(widths) - 1) > width:
        return None

    def aligned(row: list[str] | tuple[str, ...]) -> str:
        cells = zip(row, widths, text.numeric, strict=False)
        padded = (cell.rjust(wide) if number else cell.ljust(wide) for cell, wide, number in cells)
        return (" " * layout.gap).join(padded).rstrip()

    lines = [aligned(names) for names in zip_longest(*headings, fillvalue="")]
    lines += [_INDENT + text.names[-1]] if hangs else []
    lines.append((" " * layout.gap).join("-" * wide for wide in widths))
    for row in text.cells:
        lines.append(aligned(row[:end]))
        lines += [_INDENT + row[-1]] if hangs and row[-1] else []
    return lines


def _folded(name: str) -> list[str]:
    """A name over two lines, parted at the underscore that leaves the longer of them shortest."""
    cuts = [index + 1 for index, character in enumerate(name[:-1]) if character == "_"]
    if not cuts:
        return [name]
    best = min(cuts, key=lambda cut: max(cut, len(name) - cut))
    return [name[:best], name[best:]]


def _records(text: Grid) -> Iterator[str]:
    wide = max(map(len, text.names))
    for number, row in enumerate(text.cells, 1):
        yield f"--- row {number:,} of {len(text.cells):,} ---"
        for name, cell in zip(text.names, row, strict=True):
            yield f"{name.ljust(wide)}  {cell}".rstrip()


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(0, width - 1)]}…"

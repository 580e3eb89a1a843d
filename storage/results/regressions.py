"""Regressions of a night: the rows of the ``regressions_on`` macro as data classes."""

from __future__ import annotations

import datetime as dt
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import duckdb

from storage.results.query import open_catalog
from storage.root import StoreRoot

Kind = Literal["slower", "larger", "worse", "vanished", "appeared", "improved"]


@dataclass(frozen=True)
class Regression:
    """One finding about a candidate on a night.

    ``tonight`` with its interval and ``reference`` (the median of ``nights`` valid nights before the last two) are in
    the unit of ``metric``; ``change`` is tonight ÷ reference - 1, None if the reference is 0. All are None for a
    candidate that appeared or vanished.
    """

    workload: str
    recipe: str
    runtime: str
    fingerprint: str
    kind: Kind
    metric: str
    tonight: float | None
    tonight_low: float | None
    tonight_high: float | None
    reference: float | None
    change: float | None
    nights: int

    @property
    def is_bad(self) -> bool:
        """Whether it should wake someone: slower, larger, worse or gone."""
        return self.kind in ("slower", "larger", "worse", "vanished")


def find_regressions(
    source: StoreRoot | Path | str | duckdb.DuckDBPyConnection, night: dt.date | None = None
) -> list[Regression]:
    """Compare a night (each workload's newest by default) with those before it on the same host."""
    columns = ", ".join(field.name for field in fields(Regression))
    asked = "null::date" if night is None else f"date '{night.isoformat()}'"
    with nullcontext(source) if isinstance(source, duckdb.DuckDBPyConnection) else open_catalog(source) as connection:
        rows = connection.execute(f"select {columns} from regressions_on({asked})").fetchall()
    return [Regression(*row) for row in rows]

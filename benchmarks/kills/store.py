"""What must hold of a store between nights that were killed, and after the one that was not."""

from __future__ import annotations

from pathlib import Path

from storage.check import check
from storage.results.catalog import CATALOG
from storage.results.query import run_query

# Of every artifact's files: inode and time of change.
Files = dict[str, tuple[int, int]]
_KEYS = "run_id, workload, recipe, runtime, setting, threads, batch_size"


def require_whole(store: Path, before: Files, *, killed: bool) -> Files:
    """Give each file of each finished artifact; `RuntimeError` where one has changed or the store is not whole."""
    # A night that is killed between a file of results and the catalog leaves the catalog of the one before it. A night
    # that is killed between a switch and its row leaves the row to the next one.
    problems = [
        each
        for each in check(store).problems
        if not (killed and (each.where == CATALOG or "promotions has no row" in each.what))
    ]
    files = (path for path in (store / "artifacts").glob("*/[0-9a-f][0-9a-f]/*/**/*") if path.is_file())
    after = {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
    if problems or not before.items() <= after.items():
        raise RuntimeError(f"The store is not whole: {problems or 'an artifact has changed'}")
    return after


def rows_twice(store: Path | str) -> int:
    """How many measurements are there more than once."""
    return run_query(store, f"SELECT {_KEYS} FROM measurements GROUP BY ALL HAVING count(*) > 1").num_rows


def require_each_row_once(store: Path) -> None:
    """`RuntimeError` where a measurement is there twice."""
    if rows_twice(store):
        raise RuntimeError("A row is there twice.")

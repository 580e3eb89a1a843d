"""Attacks on what the store says: results files and the catalog."""

from __future__ import annotations

import datetime as dt
import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.attacks.outcome import Outcome, mutated, outcome_of
from storage.results.catalog import CATALOG, build
from storage.results.compact import merged_month
from storage.results.layout import find_files, read_rows
from storage.results.query import run_query
from storage.results.tables import PROMOTIONS
from storage.results.writer import serialized, validated
from storage.root import StoreRoot
from tests.storage.results.rows import promotion


def bit_flips(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Single bits of a results file, every one if there are no more than `tries`."""
    content, _ = _results()
    root = StoreRoot.of(folder)
    places = range(8 * len(content))
    for place in places if len(places) <= tries else chance.sample(places, tries):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        root.put("flipped.parquet", bytes(changed))
        outcome = outcome_of(lambda: read_rows(root, PROMOTIONS, "flipped.parquet"))
        yield "through" if outcome == "harmless" else outcome


@cache
def _results() -> tuple[bytes, bytes]:
    """A run's results file, and that of a compacted month."""
    rows, _ = validated(PROMOTIONS, [promotion("r1", dt.date(2026, 3, 1))], "r1")
    return serialized(rows), merged_month(PROMOTIONS, rows, ["r1"])


def results_files(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Damaged results files."""
    root = StoreRoot.of(folder)
    names = "results/promotions/month=2026-03/r1.parquet", "results/promotions/month=2026-03/compacted-0001.parquet"
    for _ in range(tries):
        which = chance.randrange(2)
        good = _results()[which]
        content = mutated(good, chance, changes=chance.randint(1, 5))
        root.put(names[which], content)

        def read() -> None:
            for entry in find_files(root, PROMOTIONS).current:
                read_rows(root, PROMOTIONS, entry.name).to_pylist()
            if content != good:  # noqa: B023 - called at once
                raise AssertionError("a changed file was read")

        yield outcome_of(read)
        root.delete(names[which])


@cache
def _catalog() -> bytes:
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        root = StoreRoot.of(folder)
        root.put("results/promotions/month=2026-03/r1.parquet", _results()[0])
        build(root, Path(folder, CATALOG))
        return Path(folder, CATALOG).read_bytes()


def catalogs(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Catalogs with changed or missing bytes."""
    good = _catalog()
    (folder / CATALOG).write_bytes(good)
    rows = run_query(folder, "from promotions")

    def read() -> None:
        if run_query(folder, "from promotions") != rows:
            raise AssertionError("other rows were read")

    for _ in range(tries):
        changed = bytearray(good)
        for _ in range(chance.randint(1, 5)):
            changed[chance.choice((chance.randrange(len(good)), chance.randrange(12_288)))] = chance.randrange(256)
        (folder / CATALOG).write_bytes(changed[: chance.choice((len(good), len(good), chance.randrange(len(good))))])
        yield outcome_of(read)

"""How fast the views are at ten years' scale: makes the data, times every view.

Usage: ``python benchmarks/results_scale.py [--nights 3650] [--workloads 20] [--recipes 8] [--blocks 18]``. Makes the
files with the store's own serializers and prints Markdown tables of medians.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.results.catalog import refresh
from storage.results.compact import whole_month
from storage.results.layout import find_files
from storage.results.query import open_catalog
from storage.results.regressions import compare_night
from storage.results.tables import MEASUREMENTS, PROMOTIONS, RUNS, Table
from storage.results.writer import ResultsStore, serialized
from storage.root import StoreRoot

FIRST = dt.date(2016, 1, 1)
REPEATS = 7
QUERIES = {
    "latest": "from latest",
    "leaderboard": "from leaderboard",
    "trend of one candidate": "from trend where workload = 'workload-03' and recipe = 'recipe-2'",
    "yearly trend of all candidates": "select year(night), recipe, avg(speedup) from trend group by all",
    "pareto": "from pareto",
    "failures": "from failures limit 100",
}
SAMPLES = {
    "samples: nightly median of one candidate": "select night, median(seconds) from samples "
    "where workload = 'workload-03' and recipe = 'recipe-2' group by night order by night",
    "samples: monthly mean over all samples": "select date_trunc('month', night) as month, avg(seconds) from samples "
    "group by month order by month",
}


def columns(table: Table, count: int, values: dict[str, object]) -> pa.Table:
    """A table of the schema with these columns, constants repeated and the rest NULL."""
    arrays = []
    for field in table.schema:
        value = values.get(field.name)
        if isinstance(value, pa.Array | np.ndarray | list):
            arrays.append(pa.array(value, field.type))
        else:
            arrays.append(
                pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), count)
            )
    return pa.Table.from_arrays(arrays, schema=table.schema)


def night_rows(night: dt.date, workloads: int, recipes: int, blocks: int, generator: np.random.Generator) -> pa.Table:
    """One night's measurements: every workload and recipe with its raw blocks."""
    count = workloads * recipes
    speedup = np.tile(1 + 0.5 * np.arange(recipes), workloads) * generator.normal(1, 0.01, count)
    failed = generator.random(count) < 0.002
    ends = np.arange(0, (count + 1) * blocks, blocks, dtype="int32")
    integers = pa.array(np.tile(np.arange(blocks, dtype="int32"), count))
    seconds = pa.array(np.repeat(0.1 / speedup, blocks) * generator.normal(1, 0.05, count * blocks))
    position = np.arange(count)
    values: dict[str, object] = {
        "run_id": f"run-{night}",
        "night": night,
        "workload": [f"workload-{index // recipes:02}" for index in position],
        "recipe": [f"recipe-{index % recipes}" for index in position],
        "runtime": "eager",
        "setting": "primary",
        "threads": 1,
        "batch_size": 1,
        "status": np.where(failed, "failed", "ok").tolist(),
        "stage": ["benchmark" if flag else None for flag in failed],
        "error": ["it did not load" if flag else None for flag in failed],
        "measured_at": dt.datetime.combine(night, dt.time(3), dt.UTC),
        "profile": "standard",
        "method": ["none" if index % recipes == 0 else "dynamic" for index in position],
        "engine": "x86",
        "baseline": "recipe-0/eager",
        "is_baseline": [index % recipes == 0 for index in position],
        "fingerprint": "f" * 64,
        "machine": "e" * 64,
        "environment": '{"kernel":"Linux 6.1","numpy":"2.4.6","python":"3.11.7","torch":"2.15.0"}',
        "size_bytes": 1_000_000 - 100_000 * (position % recipes),
        "baseline_size_bytes": 1_000_000,
        "size_ratio": 1_000_000 / (1_000_000 - 100_000 * (position % recipes)),
        "quality_metric": "loss",
        "quality": generator.normal(4, 0.01, count),
        "quality_difference": generator.normal(0.1, 0.001, count),
        "quality_difference_low": generator.normal(0.09, 0.001, count),
        "quality_difference_high": generator.normal(0.11, 0.001, count),
        "higher_is_better": False,
        "latency_s": 0.1 / speedup,
        "latency_q25_s": 0.095 / speedup,
        "latency_q75_s": 0.105 / speedup,
        "baseline_latency_s": 0.1,
        "speedup": speedup,
        "speedup_low": speedup * 0.98,
        "speedup_high": speedup * 1.02,
        "blocks": blocks,
        "peak_rss_bytes": 5_000_000,
        "verdict": "valid",
        "artifact_digest": "a" * 64,
        "block_launch": pa.ListArray.from_arrays(pa.array(ends), integers),
        "block_round": pa.ListArray.from_arrays(pa.array(ends), integers),
        "block_s": pa.ListArray.from_arrays(pa.array(ends), seconds),
    }
    return columns(MEASUREMENTS, count, values)


def fill(root: Path, arguments: argparse.Namespace, nights: int, *, compacted: bool) -> None:
    """Write nights as each run's own files, or as the months' files that compaction makes of those."""
    store = ResultsStore(root)
    generator = np.random.default_rng(0)
    months: dict[str, list[dt.date]] = {}
    for index in range(nights):
        night = FIRST + dt.timedelta(days=index)
        months.setdefault(f"{night:%Y-%m}", []).append(night)
    for month, dates in months.items():
        made = {night: night_tables(night, arguments, generator) for night in dates}
        for table in (MEASUREMENTS, RUNS, PROMOTIONS):
            parts = {f"run-{night}": tables[table.name] for night, tables in made.items()}
            if compacted:
                content = whole_month(table, pa.concat_tables(parts.values()), parts)
                store.root.put_new(f"results/{table.name}/compacted/{month}-0001.pq", content)
                continue
            for run, rows in parts.items():
                store.root.put_new(f"results/{table.name}/month={month}/{run}.parquet", serialized(table, rows))


def night_tables(night: dt.date, arguments: argparse.Namespace, generator: np.random.Generator) -> dict[str, pa.Table]:
    """One night's rows of each table."""
    rows = night_rows(night, arguments.workloads, arguments.recipes, arguments.blocks, generator)
    at = dt.datetime.combine(night, dt.time(3), dt.UTC)
    run = {
        "run_id": f"run-{night}", "night": night, "started_at": at, "finished_at": at, "status": "completed",
        "profile": "standard", "workloads": arguments.workloads, "candidates_ok": rows.num_rows,
        "candidates_failed": 0, "fingerprint": "f" * 64,
    }  # fmt: skip
    decided = {
        "run_id": f"run-{night}", "night": night, "workload": rows["workload"].to_pylist(),
        "recipe": rows["recipe"].to_pylist(), "runtime": "eager", "decision": "pass", "decided_at": at,
        "objective": "fastest", "rules": "[]", "reason": "passes",
    }  # fmt: skip
    return {
        "measurements": rows,
        "runs": columns(RUNS, 1, run),
        "promotions": columns(PROMOTIONS, rows.num_rows, decided),
    }


def timed(root: Path, title: str) -> None:
    """Print the median time of each query, fetching all its rows, in a process that has the catalog open."""
    with open_catalog(root) as connection:
        counts = "select (select count(*) from measurements), (select count(*) from samples)"
        found = connection.execute(counts).fetchall()[0]
        files = len(find_files(StoreRoot.of(root), MEASUREMENTS).current)
        print(f"\n{title}: {found[0]:,} measurements, {found[1]:,} samples, {files} files of measurements\n")
        print("| query | rows | median ms | slowest ms |\n| --- | ---: | ---: | ---: |")
        asked: dict[str, Callable[[], int]] = {
            name: lambda sql=sql: connection.sql(sql).to_arrow_table().num_rows  # type: ignore[misc]
            for name, sql in (QUERIES | SAMPLES).items()
        }
        asked["comparison with earlier nights"] = lambda: len(compare_night(connection).findings)
        for name, ask in asked.items():
            times, rows = [], 0
            for _ in range(REPEATS):
                began = time.perf_counter()
                rows = ask()
                times.append((time.perf_counter() - began) * 1000)
            print(f"| {name} | {rows:,} | {statistics.median(times):.0f} | {max(times):.0f} |", flush=True)


def main() -> None:
    """Make, compact and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nights", type=int, default=3650)
    parser.add_argument("--workloads", type=int, default=20)
    parser.add_argument("--recipes", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=18, help="raw timed blocks of each measurement")
    parser.add_argument("--open-nights", type=int, default=365, help="nights of the store that is not compacted")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, nights, compacted in (
            ("Not compacted", arguments.open_nights, False),
            ("Compacted by month", arguments.nights, True),
        ):
            root = Path(folder) / str(compacted)
            took(f"{name}: writing {nights} nights", partial(fill, root, arguments, nights, compacted=compacted))
            took(f"{name}: catalog", partial(refresh, root))
            print(f"{name}: catalog of {(root / 'results.duckdb').stat().st_size / 1e6:.0f} MB")
            timed(root, name)


def took(name: str, work: Callable[[], object]) -> None:
    """Print how long a piece of work takes."""
    began = time.perf_counter()
    work()
    print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()

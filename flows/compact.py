"""The flow ``compact-results``: upkeep of the results, weekly."""

from __future__ import annotations

from prefect import flow, task
from prefect.logging import get_run_logger

from flows.settings import load_settings
from storage.results.compact import compact
from storage.root import set_cache_folder


@task(name="compact", persist_result=False)
def compact_months(store: str) -> str:
    """Merge the small files of finished months; readers and writers go on meanwhile."""
    return str(compact(store))


@flow(name="compact-results", description="Merge the small result files of finished months into one a table.")
def compact_results(store: str | None = None) -> str:
    """Compact the results of a store (default: the settings'); return one line of what was done."""
    settings = load_settings(store=store)
    set_cache_folder(settings.cache)
    done = compact_months(settings.store)
    get_run_logger().info("compacted: %s", done)
    return done

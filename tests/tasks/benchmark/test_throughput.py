"""Which further settings a workload asks for."""

from __future__ import annotations

from tasks.benchmark.throughput import Setting, further_settings
from tasks.workload.workload import Benchmark


def test_nothing_is_added_unasked() -> None:
    assert further_settings(Benchmark()) == []


def test_every_batch_size_meets_every_thread_count_without_the_primary() -> None:
    settings = further_settings(Benchmark(threads=1, batch_size=1, batch_sizes=(1, 8), thread_counts=(1, 2)))
    assert settings == [Setting(1, 8), Setting(2, 1), Setting(2, 8)]


def test_one_axis_keeps_the_primary_value_of_the_other() -> None:
    assert further_settings(Benchmark(threads=2, batch_sizes=(4,))) == [Setting(2, 4)]
    assert str(Setting(2, 4)) == "batch 4, 2 threads"

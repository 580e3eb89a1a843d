"""Further settings: the same candidates at other batch sizes and thread counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from storage.artifacts import ArtifactStore
from tasks.benchmark.messages import Subject
from tasks.domains import DOMAINS
from tasks.golden import GOLDEN, Golden
from tasks.job import Job
from tasks.workload.workload import Benchmark, Workload


@dataclass(frozen=True)
class Setting:
    """Intra-op threads and samples in a call."""

    threads: int
    batch_size: int

    def __str__(self) -> str:
        return f"batch {self.batch_size}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def further_settings(benchmark: Benchmark) -> list[Setting]:
    """Every asked-for batch size with every asked-for thread count, without the setting that is timed anyway."""
    primary = Setting(benchmark.threads, benchmark.batch_size)
    batch_sizes = benchmark.batch_sizes or (benchmark.batch_size,)
    thread_counts = benchmark.thread_counts or (benchmark.threads,)
    settings = [Setting(threads, batch_size) for threads in thread_counts for batch_size in batch_sizes]
    return [setting for setting in dict.fromkeys(settings) if setting != primary]


@contextmanager
def subjects_at(
    batch_size: int, subjects: Sequence[Subject], job: Job[Workload], store: ArtifactStore
) -> Iterator[list[Subject]]:
    """The subjects with inputs of another batch size, in a file that lasts as long as the block.

    Nothing was evaluated at this size: outputs are only checked for NaN and infinities.
    """
    if batch_size == job.workload.benchmark.batch_size:
        yield list(subjects)
        return
    inputs = DOMAINS[job.workload.domain].example_inputs(job.workload, job.dataset, store, batch_size)
    with TemporaryDirectory(prefix="nightquant-") as folder:
        path = Path(folder) / GOLDEN
        path.write_bytes(Golden(inputs).to_bytes())
        yield [subject.model_copy(update={"golden": str(path)}) for subject in subjects]

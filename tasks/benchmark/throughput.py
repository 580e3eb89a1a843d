"""Further settings: the same candidates at other batch sizes and thread counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError
from tasks.benchmark.messages import Subject
from tasks.refs import DatasetRef
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
    batch_size: int,
    subjects: Sequence[Subject],
    workload: Workload,
    dataset: DatasetRef | None,
    store: ArtifactStore,
) -> Iterator[list[Subject]]:
    """The subjects with inputs of another batch size, in a file that lasts as long as the block.

    Nothing was evaluated at this size: outputs are only checked for values that are no numbers.

    Raises
    ------
    ConfigurationError
        There is no data set to take the inputs from.
    """
    if batch_size == workload.benchmark.batch_size:
        yield list(subjects)
        return
    if dataset is None:
        raise ConfigurationError(
            f"{workload.name}: benchmark.batch_sizes needs the data set.", hint="Pass dataset=… to benchmark()."
        )
    from safetensors.torch import save_file

    from tasks.models import example_inputs

    inputs = example_inputs(workload, dataset, store, batch_size=batch_size)
    with TemporaryDirectory(prefix="nightquant-") as folder:
        path = Path(folder) / "inputs.safetensors"
        tensors = {f"input.{name}": tensor.contiguous() for name, tensor in inputs.items()}
        save_file(tensors, path, {"inputs": json.dumps(list(inputs))})
        yield [subject.model_copy(update={"golden": str(path)}) for subject in subjects]

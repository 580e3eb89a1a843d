"""What travels between a benchmark and its child processes: small JSON files, never models."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tasks.refs import Frozen

COPY_SUFFIX = "#copy"


class Subject(Frozen):
    """Something to time.

    ``folder`` holds what the loader opens, ``shared`` the folders of artifacts that it shares with others, by kind;
    ``golden`` is the safetensors file with the inputs, and with the outputs to agree with where there are any.
    """

    name: str
    folder: str = ""
    shared: dict[str, str] = Field(default_factory=dict)
    runtime: str = ""
    golden: str = ""

    def copy_for_check(self) -> Subject:
        """The same again under another name."""
        return self.model_copy(update={"name": self.name + COPY_SUFFIX})


class LaunchSpec(Frozen):
    """What one launch has to do.

    ``loader`` names a function ``module:function`` that makes a `tasks.benchmark.loading.Loaded` of a `Subject`;
    ``calls`` gives the calls per block that the first launch froze, ``modules`` what it
    imported; ``spawned_at`` is the parent's monotonic clock.
    """

    subjects: tuple[Subject, ...]
    loader: str
    threads: int
    launch: int
    rounds: int
    block_s: float
    warm_up_calls: int
    warm_up_s: float
    single_calls: int
    single_s: float
    seed: int
    calls: dict[str, int] = Field(default={})
    modules: tuple[str, ...] = ()
    spawned_at: float


class SubjectReport(Frozen):
    """One subject as timed in one launch: seconds per call, by round and one by one."""

    name: str
    load_s: float
    first_call_s: float
    calls_per_block: int
    round_s: tuple[float, ...]
    single_s: tuple[float, ...]


class LaunchReport(Frozen):
    """What one launch found.

    ``refused`` maps subjects to why they were not timed; ``start_s`` is the time from the start of the process until
    everything was loaded, ``first_block_s`` until the first timed block; ``modules`` are those of this project that the
    candidates needed. ``capability`` is the instruction set that torch dispatches to, ``engines`` its quantized ones.
    """

    subjects: tuple[SubjectReport, ...]
    refused: dict[str, str]
    start_s: float
    first_block_s: float
    timed_s: float
    affinity: tuple[int, ...]
    threads: int
    capability: str
    engines: tuple[str, ...]
    voluntary_switches: int
    involuntary_switches: int
    modules: tuple[str, ...]


class MemorySpec(Frozen):
    """What the memory process has to do: each subject alone, after importing ``modules``."""

    subjects: tuple[Subject, ...]
    loader: str
    threads: int
    modules: tuple[str, ...]
    calls: int = 3


class Memory(Frozen):
    """Resident bytes above the process before loading: once loaded, and at the peak of loading and running."""

    rss_loaded_bytes: int
    peak_rss_bytes: int


class MemoryReport(Frozen):
    """Memory by subject; a subject that could not be measured is missing."""

    memory: dict[str, Memory]


def write_message(message: Frozen, path: Path) -> None:
    """Write a message whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(message.model_dump_json(), encoding="utf-8")
    partial.replace(path)

"""What a benchmark asks of its child processes and what they report: small JSON files, never models."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tasks.refs import Frozen
from tasks.runtimes.base import CandidateFiles

# Of subjects that stand beside a candidate of the same name.
COPY_SUFFIX, INCUMBENT_SUFFIX = "#copy", "#incumbent"


class Profile(Frozen):
    """The size of a benchmark: fresh processes (launches), and rounds in each, which time a block of every candidate.

    There are at least ``launches`` of them, and more while speed is not decided and ``budget_s`` is not spent.
    ``block_s`` is the least time of a block; ``warm_up_calls`` and ``warm_up_s`` are the least before a candidate's
    first block, ``rewarm_s`` in later launches, which need not find out how many calls fill a block. In
    ``launches`` launches ``single_calls`` are timed one by one, for percentiles, for at most ``single_s`` per candidate
    and launch. ``cold_rounds`` is the most rounds of single calls with cold caches. Further settings, which decide
    nothing, get ``further_launches``.
    """

    name: str
    launches: int
    rounds: int
    budget_s: float
    block_s: float = 0.1
    warm_up_calls: int = 10
    warm_up_s: float = 1.0
    rewarm_s: float = 0.3
    single_calls: int = 1000
    single_s: float = 0.3
    cold_rounds: int = 40
    further_launches: int = 5


PROFILES = {
    "quick": Profile(name="quick", launches=3, rounds=4, budget_s=60, warm_up_s=0.5, single_s=0.1, further_launches=2),
    "standard": Profile(name="standard", launches=5, rounds=8, budget_s=300),
    "full": Profile(name="full", launches=10, rounds=10, budget_s=900, further_launches=10),
}


class Subject(Frozen):
    """Something to time.

    ``folder`` holds what the loader opens, ``shared`` the folders of artifacts that it shares with others, by kind;
    ``golden`` is the safetensors file with the inputs, and with the outputs to agree with where there are any.
    """

    name: str
    folder: str = ""
    shared: dict[str, str] = Field(default={})
    runtime: str = ""
    golden: str = ""

    def files(self) -> CandidateFiles:
        """The candidate's files."""
        return CandidateFiles(Path(self.folder), {kind: Path(folder) for kind, folder in self.shared.items()})


class ChildSpec(Frozen):
    """What a child process measures.

    ``loader`` names a function ``module:function`` from a `Subject` to a `tasks.benchmark.rounds.Loaded`; ``modules``
    are imported before.
    """

    subjects: tuple[Subject, ...]
    loader: str
    threads: int
    modules: tuple[str, ...] = ()


class LaunchSpec(ChildSpec):
    """One launch; ``spawned_at`` is of the monotonic clock.

    ``calls`` are those per block and ``cold_rounds`` the rounds with cold caches, which the first launch froze.
    """

    profile: Profile
    seed: int
    calls: dict[str, int] = Field(default={})
    cold_rounds: int | None = None
    spawned_at: float


class SubjectReport(Frozen):
    """One subject as timed in one launch: seconds per call, by round and one by one.

    ``cold_s`` are seconds of single calls with cold caches, one a round; ``threads_used`` is how many threads it
    kept busy.
    """

    load_s: float
    first_call_s: float
    calls_per_block: int
    round_s: tuple[float, ...]
    single_s: tuple[float, ...]
    cold_s: tuple[float, ...]
    threads_used: float


class LaunchReport(Frozen):
    """What one launch found.

    ``refused`` maps subjects to why they do not count; ``start_s`` is the time from the start of the process until
    everything was loaded, ``first_block_s`` until the first timed block, ``end_s`` until the end, ``cold_wall_s`` what
    calls with cold caches took of it. ``modules`` are those of this project that the candidates needed, ``capability``
    is the instruction set that torch dispatches to, ``engines`` its quantized ones.
    """

    subjects: dict[str, SubjectReport]
    refused: dict[str, str]
    start_s: float
    first_block_s: float
    end_s: float
    cold_wall_s: float
    timed_s: float
    affinity: tuple[int, ...]
    capability: str
    engines: tuple[str, ...]
    voluntary_switches: int
    involuntary_switches: int
    modules: tuple[str, ...]


class Memory(Frozen):
    """Resident bytes above the process before loading: once loaded, and at the peak of loading and running."""

    rss_loaded_bytes: int
    peak_rss_bytes: int


class MemoryReport(Frozen):
    """Memory by subject, and why it is missing for the others."""

    memory: dict[str, Memory]
    refused: dict[str, str]

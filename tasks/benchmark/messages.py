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

    More than ``launches`` are made while speed is not decided and ``budget_s`` is not spent. A block takes ``block_s``
    or more; before a candidate's first block it is called ``warm_up_calls`` times and for ``warm_up_s`` at least, in
    later launches for ``rewarm_s``. In ``launches`` launches ``single_calls`` are timed one by one, for percentiles,
    for at most ``single_s`` per candidate and launch, and at most ``cold_rounds`` rounds with cold caches. Further
    settings, which decide nothing, get ``further_launches``.
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
    """Something to time: the loader opens ``folder`` and the ``shared`` ones, by kind, on the inputs in ``golden``."""

    name: str
    folder: str = ""
    shared: dict[str, str] = Field(default={})
    runtime: str = ""
    golden: str = ""

    def files(self) -> CandidateFiles:
        """The candidate's files."""
        return CandidateFiles(Path(self.folder), {kind: Path(folder) for kind, folder in self.shared.items()})


class ChildSpec(Frozen):
    """What a child measures; ``loader`` names the function from `Subject` to `Loaded`; ``modules`` come first."""

    subjects: tuple[Subject, ...]
    loader: str
    threads: int
    modules: tuple[str, ...] = ()


class LaunchSpec(ChildSpec):
    """One launch, started at the monotonic time ``spawned_at``; the first one froze ``calls`` and ``cold_rounds``."""

    profile: Profile
    seed: int
    calls: dict[str, int] = Field(default={})
    cold_rounds: int | None = None
    spawned_at: float


class SubjectReport(Frozen):
    """One subject as timed in one launch: seconds per call, by round, one by one, and with cold caches, one a round."""

    load_s: float
    first_call_s: float
    calls_per_block: int
    round_s: tuple[float, ...]
    single_s: tuple[float, ...]
    cold_s: tuple[float, ...]
    threads_used: float


class LaunchReport(Frozen):
    """What one launch found; ``refused`` maps subjects to why they do not count.

    From the start of the process it took ``start_s`` until everything was loaded, ``first_block_s`` until the first
    timed block and ``end_s`` until the end, ``cold_wall_s`` of it for calls with cold caches. ``modules`` are those of
    this project that the candidates needed; torch dispatches to the instruction set ``capability``, and has the
    ``engines``.
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

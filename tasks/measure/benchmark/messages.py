"""Requests to a benchmark's child processes, and their reports: small JSON files that do not contain models."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from storage.results import Setting
from tasks.runtimes.base import CandidateFiles
from tasks.values.refs import Frozen
from tasks.workload.recipe import CandidateName


class Profile(Frozen):
    """Size of a benchmark; a launch is a new process, in which every round times one block of calls per candidate.

    Blocks are short, so that a disturbance affects all candidates of a round. Launches continue beyond ``launches``
    until every speed rule is decided or ``budget_s`` would be exceeded.
    """

    name: str
    launches: int
    rounds: int
    budget_s: float
    block_s: float = 0.02
    warm_up_calls: int = 10
    warm_up_s: float = 0.1
    single_calls: int = 1000
    single_s: float = 0.3
    cold_rounds: int = 40


PROFILES = {
    "quick": Profile(name="quick", launches=3, rounds=8, budget_s=60, warm_up_s=0.03, single_s=0.1),
    "standard": Profile(name="standard", launches=5, rounds=16, budget_s=300),
    "full": Profile(name="full", launches=10, rounds=20, budget_s=900),
}  # fmt: skip


class Subject(Frozen):
    """A candidate, the baseline's copy or the current bundle, as ``setting`` says; ``shared`` maps kinds to folders."""

    name: CandidateName
    setting: Setting = "primary"
    folder: str = ""
    shared: dict[str, str] = Field(default={})
    golden: str = ""

    @property
    def key(self) -> str:
        """Key of the subject in reports."""
        return self.name.key(self.setting)

    def size_bytes(self) -> int:
        """Return the size of the candidate's files on disk."""
        folders = {self.folder, *self.shared.values()}
        return sum(path.stat().st_size for folder in folders for path in Path(folder).rglob("*") if path.is_file())

    def files(self) -> CandidateFiles:
        """Return the candidate's files."""
        return CandidateFiles(Path(self.folder), {kind: Path(folder) for kind, folder in self.shared.items()})


class ChildSpec(Frozen):
    """Subjects for a child process, which imports ``modules`` and then opens each subject with ``loader``.

    A child that measures in processes of its own runs up to ``processes`` of them at once.
    """

    subjects: tuple[Subject, ...]
    loader: str
    threads: int
    modules: tuple[str, ...] = ()
    processes: int = 1


class LaunchSpec(ChildSpec):
    """What a launch loads, in an order that depends on ``seed``, and how it times the subjects.

    ``loads_beside`` says whether another launch loads at the same time, on the processors that are used for timing.
    ``cold_share`` limits the first launch's cold rounds to a fraction of the time that the launch needs.
    """

    profile: Profile
    seed: int
    loads_beside: bool = False
    cold_share: float
    spawned_at: float


class LaunchOrder(Frozen):
    """Keys of the subjects to time; later launches repeat the ``calls`` and ``cold_rounds`` of the first launch."""

    keys: tuple[str, ...]
    calls: dict[str, int] = Field(default={})
    single_calls: int
    cold_rounds: int | None = None


class SubjectReport(Frozen):
    """One subject's call times in one launch, in seconds: block means, individually timed calls, and cold calls."""

    load_s: float
    first_call_s: float
    calls_per_block: int
    round_s: tuple[float, ...]
    single_s: tuple[float, ...]
    cold_s: tuple[float, ...]


class LaunchReport(Frozen):
    """Results of one launch: the reasons for refusals by subject, and the imported nightquant modules."""

    subjects: dict[str, SubjectReport]
    refused: dict[str, str]
    modules: tuple[str, ...]


class Memory(Frozen):
    """Growth of resident memory since loading began, measured after loading and at the peak."""

    rss_loaded_bytes: int
    peak_rss_bytes: int


class MemoryReport(Frozen):
    """Memory by subject; ``refused`` maps each unmeasured subject to the reason for the failure."""

    memory: dict[str, Memory]
    refused: dict[str, str]

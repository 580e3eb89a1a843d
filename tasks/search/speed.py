"""Measure the speed of trials in two launches, without measuring memory or collecting proofs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tasks.benchmark.messages import Profile
from tasks.benchmark.stage import BenchmarkCandidate, alone_on_host
from tasks.job import Job, Workspace
from tasks.search.trial import Speed, Timed
from tasks.workload.workload import Workload

_LAUNCHES = 2
PROFILE = Profile(
    name="search", launches=_LAUNCHES, rounds=4, budget_s=0, warm_up_s=0.3, single_calls=10, single_s=0.02,
    cold_rounds=4,
)  # fmt: skip
_COLD_ROUNDS = 12  # number of rounds with cold caches, if `benchmark.caches` is cold


def time_trials(
    job: Job[Workload],
    baseline: BenchmarkCandidate,
    candidates: Sequence[BenchmarkCandidate],
    workspace: Workspace,
    *,
    limit_s: float | None = None,
) -> Timed:
    """Measure the speed of candidates and the baseline in two launches, while no other benchmark runs on the host.

    The intervals also use the other subjects' variances, because two launches are too few to estimate a variance.

    Raises
    ------
    MeasurementError
        The baseline was refused, a launch failed, or `limit_s` (without waiting) was reached.
    """
    settings = job.workload.benchmark
    profile = PROFILE.model_copy(update={"cold_rounds": _COLD_ROUNDS}) if settings.caches == "cold" else PROFILE
    subjects = [candidate.subject(workspace) for candidate in (baseline, *candidates)]
    began = time.monotonic()
    with alone_on_host(job.workload, baseline.name, profile, workspace, limit_s) as session:
        waited_s = time.monotonic() - began
        measured = session.measure(subjects).with_caches(settings.caches)
    timed = measured.names()
    ratios = {candidate.name: measured.moderated(candidate.name) for candidate in candidates if candidate.name in timed}
    return Timed(
        speeds={
            name: Speed(value=ratio.value, low=ratio.low, high=ratio.high, launches=_LAUNCHES)
            for name, ratio in ratios.items()
        },
        refused=measured.refused,
        waited_s=waited_s,
    )

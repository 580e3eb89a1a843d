"""Measure capacity in the benchmark stage: choose the candidates, run the measurement, and compute ratios and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

import numpy as np
from pydantic import Field

from storage.errors import MeasurementError
from tasks.environment.machine import available_cores
from tasks.measure.benchmark.child import run_child
from tasks.measure.benchmark.contest import Measured
from tasks.measure.benchmark.messages import ChildSpec, Subject
from tasks.measure.benchmark.protocol import Session
from tasks.measure.benchmark.statistics import Noise, Ratio, Sample
from tasks.values.refs import Frozen
from tasks.values.results import ServedCapacity
from tasks.workload.workload import Workload


class CapacitySpec(ChildSpec):
    """Subjects, beginning with the baseline; ``bound_s`` limits the latency, and 0 stands for the offline scenario."""

    bound_s: float = 0.0
    budget_s: float


class Served(Frozen):
    """Requests per second in each sitting, latency percentiles by column, and how the load generator limited them."""

    rps: tuple[float, ...]
    percentiles: dict[str, float] = Field(default={})
    limit: str = ""


class CapacityReport(Frozen):
    """Results by subject; ``refused`` maps subjects to the reasons for refusal."""

    subjects: dict[str, Served]
    refused: dict[str, str]


def measure_capacity(
    session: Session, subjects: Sequence[Subject], eligible: Sequence[str], workload: Workload
) -> tuple[dict[str, ServedCapacity], dict[str, dict[str, str]]]:
    """Measure the capacity of the baseline and the `eligible` subjects; if time is short, leave out the last subjects.

    Return capacities by subject, and reasons for missing values by subject and column. Both are empty without a
    ``[benchmark.capacity]`` section, and in quick runs.
    """
    settings = workload.benchmark.capacity
    if settings is None or session.profile.name == "quick":
        return {}, {}
    names = list(dict.fromkeys([str(session.baseline), *eligible]))
    by_key = {subject.key: subject for subject in subjects}
    threads = min(settings.threads, available_cores())
    spec = CapacitySpec(
        subjects=tuple(by_key[name] for name in names if name in by_key),
        loader=session.loader,
        threads=threads,
        processes=available_cores() // threads,
        bound_s=(settings.latency_bound_ms or 0.0) / 1e3,
        budget_s=settings.budget_s,
    )
    try:
        report = run_child("tasks.measure.benchmark.capacity_child", spec, CapacityReport, session.limit)
    except MeasurementError as error:
        report = CapacityReport(subjects={}, refused=dict.fromkeys(names, str(error)))
    split = f"{spec.processes} process{'es' if spec.processes > 1 else ''} × {threads} thread{'s' * (threads > 1)}"
    ratios = ratios_of(report.subjects, str(session.baseline))
    capacities = {}
    for name, served in report.subjects.items():
        rps = geometric_mean(served.rps)
        capacities[name] = ServedCapacity(
            capacity_scenario=settings.scenario,
            capacity_rps=rps,
            capacity_ratio=ratios[name].value,
            capacity_ratio_low=ratios[name].low,
            capacity_ratio_high=ratios[name].high,
            capacity_split=f"{split}, batch {workload.benchmark.batch_size}",
            capacity_limit=served.limit,
            **served.percentiles,
        )
    columns = ("capacity_rps", "capacity_ratio")
    return capacities, {name: dict.fromkeys(columns, reason) for name, reason in report.refused.items()}


def ratios_of(served: Mapping[str, Served], baseline: str) -> dict[str, Ratio]:
    """Return the ratio of each subject's capacity to the baseline's capacity, with a 95% interval over sittings."""
    rps = {name: np.array(item.rps)[:, None] for name, item in served.items()}
    samples = {name: Sample.against_one(rps[baseline], each) for name, each in rps.items() if name != baseline}
    noise = Noise.pooled(samples.values())
    return {baseline: Ratio(1.0, 1.0, 1.0)} | {name: noise.interval(sample) for name, sample in samples.items()}


def eligible_subjects(measured: Measured, promising: Sequence[str]) -> list[str]:
    """Return the current bundle, and the candidates that can reach ``min_speedup``, from fastest to slowest."""
    contest = measured.contest
    deciding = measured.with_caches(contest.caches)
    names = [name for name in promising if name in deciding.names() and name != measured.baseline]
    least = contest.min_speedup or 0.0
    kept = [name for name in names if name == contest.current or deciding.bounds(name).high >= least]
    return sorted(kept, key=lambda name: (name != contest.current, -deciding.ratio(name).value))

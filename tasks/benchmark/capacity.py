"""Measure capacity in the benchmark stage: choose the candidates, run the measurement, and compute ratios and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean

import numpy as np

from storage.errors import MeasurementError
from tasks.benchmark.capacity_child import CapacityReport, CapacitySpec, Served
from tasks.benchmark.child import run_child
from tasks.benchmark.messages import Subject
from tasks.benchmark.protocol import Measured, Session
from tasks.benchmark.statistics import Noise, Ratio, Sample
from tasks.machine import available_cores
from tasks.results import ServedCapacity
from tasks.workload.workload import Workload


@dataclass(frozen=True)
class Capacities:
    """Capacities, keyed by subject; ``unknown`` maps subjects and columns to the reasons for missing values."""

    served: dict[str, ServedCapacity] = field(default_factory=dict)
    unknown: dict[str, dict[str, str]] = field(default_factory=dict)


def measure_capacity(
    session: Session, subjects: Sequence[Subject], eligible: Sequence[str], workload: Workload
) -> Capacities:
    """Measure the capacity of the baseline and the `eligible` subjects; if time is short, leave out the last subjects.

    If ``[benchmark.capacity]`` is missing, return an empty result. With the ``quick`` profile, measure only if
    ``in_quick`` is true. If a quick run skips the measurement, give a reason only if the gate needs capacities.
    """
    settings = workload.benchmark.capacity
    is_left_out = settings is not None and session.profile.name == "quick" and not settings.in_quick
    if settings is None or (is_left_out and not workload.gate.needs_capacity):
        return Capacities()
    names = list(dict.fromkeys([session.baseline, *eligible]))
    threads = min(settings.threads, available_cores())
    processes = available_cores() // threads
    try:
        if is_left_out:
            raise MeasurementError(
                "Capacity was not measured, because quick runs skip this measurement by default.",
                hint="To measure capacity in quick runs, set in_quick = true in [benchmark.capacity].",
            )
        spec = CapacitySpec(
            subjects=tuple(subject for name in names for subject in subjects if subject.name == name),
            loader=session.loader,
            threads=threads,
            processes=processes,
            bound_s=(settings.latency_bound_ms or 0.0) / 1e3,
            budget_s=settings.budget_s,
        )
        report = run_child("tasks.benchmark.capacity_child", spec, CapacityReport, session.limit)
    except MeasurementError as error:
        report = CapacityReport(subjects={}, refused=dict.fromkeys(names, str(error)))
    split = f"{processes} process{'es' if processes > 1 else ''} × {threads} thread{'s' if threads > 1 else ''}"
    ratios = ratios_of(report.subjects, session.baseline)
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
            cost_per_million=settings.price_per_hour and settings.price_per_hour / 3600 / rps * 1e6,
            **served.percentiles,
        )
    columns = ("capacity_rps", "capacity_ratio")
    return Capacities(capacities, {name: dict.fromkeys(columns, reason) for name, reason in report.refused.items()})


def ratios_of(served: Mapping[str, Served], baseline: str) -> dict[str, Ratio]:
    """Return the ratio of each subject's capacity to the baseline's capacity, with a 95% interval over sittings."""
    rps = {name: np.array(item.rps)[:, None] for name, item in served.items()}
    samples = {name: Sample.against_one(rps[baseline], each) for name, each in rps.items() if name != baseline}
    noise = Noise.pooled(samples.values())
    return {baseline: Ratio(1.0, 1.0, 1.0)} | {name: noise.interval(sample) for name, sample in samples.items()}


def eligible_subjects(measured: Measured, promising: Sequence[str]) -> list[str]:
    """Return the timed subjects whose capacity may affect decisions.

    The current bundle comes first, followed by the candidates from fastest to slowest. Candidates that cannot reach
    ``min_speedup`` are left out.
    """
    contest = measured.contest
    deciding = measured.with_caches(contest.caches)
    names = [name for name in promising if name in deciding.names() and name != measured.baseline]
    least = contest.min_speedup or 0.0
    kept = [name for name in names if name == contest.incumbent or deciding.bounds(name).high >= least]
    return sorted(kept, key=lambda name: (name != contest.incumbent, -deciding.ratio(name).value))

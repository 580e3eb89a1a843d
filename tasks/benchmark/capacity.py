"""Measure capacity in the benchmark stage: choose the candidates, run the measurement, and compute ratios and costs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from storage.artifacts import ArtifactStore
from storage.errors import InputError, MeasurementError
from tasks.benchmark.capacity_messages import CapacityReport, CapacitySpec, Served, Split
from tasks.benchmark.child import run_child
from tasks.benchmark.messages import Subject
from tasks.benchmark.protocol import Measured, Session
from tasks.benchmark.statistics import Noise, Ratio, Sample, launch_values
from tasks.extensions import DOMAINS
from tasks.job import Job
from tasks.machine import available_cores
from tasks.results import ServedCapacity
from tasks.tensor_files import GOLDEN, Golden
from tasks.workload.capacity import Capacity
from tasks.workload.workload import Workload

_SEED = 29592
_FACTORS = (1, 4, 16)
_UNKNOWN = ("capacity_rps", "capacity_ratio")


@dataclass(frozen=True)
class Capacities:
    """Capacities, keyed by subject; ``unknown`` maps subjects and columns to the reasons for missing values."""

    served: dict[str, ServedCapacity] = field(default_factory=dict)
    unknown: dict[str, dict[str, str]] = field(default_factory=dict)


def measure_capacity(
    session: Session, subjects: Sequence[Subject], eligible: Sequence[str], job: Job[Workload], store: ArtifactStore
) -> Capacities:
    """Measure the capacity of the baseline and the `eligible` subjects; if time is short, leave out the last subjects.

    If ``[benchmark.capacity]`` is missing, return an empty result. With the ``quick`` profile, measure only if
    ``in_quick`` is true. If a quick run skips the measurement, give a reason only if the gate needs capacities.
    """
    settings = job.workload.benchmark.capacity
    is_left_out = settings is not None and session.profile.name == "quick" and not settings.in_quick
    if settings is None or (is_left_out and not job.workload.gate.needs_capacity):
        return Capacities()
    by_name = {subject.name: subject for subject in subjects}
    names = list(dict.fromkeys([session.baseline, *eligible]))
    try:
        if is_left_out:
            raise MeasurementError(
                "Capacity was not measured, because quick runs skip this measurement by default.",
                hint="To measure capacity in quick runs, set in_quick = true in [benchmark.capacity].",
            )
        with _golden_files(job, settings, store) as goldens:
            spec = spec_of(session, [by_name[name] for name in names], job.workload, goldens)
            report = run_child("tasks.benchmark.capacity_child", spec, CapacityReport, session.limit)
    except MeasurementError as error:
        report = CapacityReport(subjects={}, refused=dict.fromkeys(names, str(error)))
    ratios = ratios_of(report.subjects, session.baseline)
    return Capacities(
        {name: _capacity(settings, served, ratios[name]) for name, served in report.subjects.items()},
        {name: dict.fromkeys(_UNKNOWN, reason) for name, reason in report.refused.items()},
    )


def spec_of(
    session: Session, subjects: Sequence[Subject], workload: Workload, goldens: Mapping[int, str]
) -> CapacitySpec:
    """Return a request to measure the capacity of `subjects`; the first subject is the baseline.

    Raises
    ------
    MeasurementError
        No allowed combination of processes and threads fits on this host.
    """
    settings, rows = workload.benchmark.capacity, workload.benchmark.batch_size
    assert settings is not None
    splits = splits_of(available_cores(), settings.threads, settings.processes, sorted(goldens))
    if not splits:
        required = min(settings.processes or (1,)) * min(settings.threads or (1,))
        raise MeasurementError(
            f"[benchmark.capacity] requires at least {required} processors, but this host has {available_cores()}.",
            hint="Decrease `processes` or `threads`.",
        )
    return CapacitySpec(
        subjects=tuple(subjects),
        loader=session.loader,
        threads=1,  # each worker sets its own number of threads
        scenario=settings.scenario,
        splits=splits,
        request_rows=rows,
        goldens={size: path for size, path in goldens.items() if path},
        bound_s=(settings.latency_bound_ms or 0.0) / 1e3,
        budget_s=settings.budget_s,
        seed=_SEED,
        spawned_at=time.monotonic(),
    )


def splits_of(
    processors: int, threads: Sequence[int], processes: Sequence[int], batch_sizes: Sequence[int]
) -> tuple[Split, ...]:
    """Return the combinations of process count, thread count and batch size that use at most `processors` processors.

    Combinations with many processes and small batches come first.
    """
    powers = [1 << exponent for exponent in range(processors.bit_length())]
    return tuple(
        Split(processes=count, threads=per_process, batch_size=batch_size)
        for per_process in (threads or powers)
        for batch_size in batch_sizes
        for count in (processes or (processors // per_process,))
        if 0 < count * per_process <= processors
    )


@contextmanager
def _golden_files(job: Job[Workload], settings: Capacity, store: ArtifactStore) -> Iterator[dict[int, str]]:
    """Yield the paths of input files, keyed by rows per call; ``""`` stands for the subjects' own inputs."""
    rows = job.workload.benchmark.batch_size
    sizes = (rows,) if settings.scenario == "server" else settings.batch_sizes or [rows * each for each in _FACTORS]
    domain = DOMAINS[job.workload.domain]
    with TemporaryDirectory(prefix="nightquant-") as folder:
        goldens: dict[int, str] = {}
        for size in sizes:
            path = Path(folder) / f"{size}-{GOLDEN}"
            if size != rows:
                try:
                    inputs = domain.example_inputs(job.workload, job.dataset, store, size)
                except InputError as error:
                    raise MeasurementError(f"Inputs with {size} rows cannot be created: {error}") from error
                path.write_bytes(Golden(inputs).to_bytes())
            goldens[size] = str(path) if size != rows else ""
        yield goldens


def _capacity(settings: Capacity, served: Served, ratio: Ratio) -> ServedCapacity:
    rps = math.exp(float(launch_values(np.log(served.rps)).mean()))
    price = settings.price_per_hour
    return ServedCapacity(
        capacity_scenario=settings.scenario,
        capacity_rps=rps,
        capacity_ratio=ratio.value,
        capacity_ratio_low=ratio.low,
        capacity_ratio_high=ratio.high,
        capacity_p50_s=served.p50_s,
        capacity_p99_s=served.p99_s,
        capacity_p999_s=served.p999_s,
        capacity_split=str(served.split),
        capacity_limit=served.limit,
        cost_per_million=None if price is None else price / 3600 / rps * 1e6,
    )


def ratios_of(served: Mapping[str, Served], baseline: str) -> dict[str, Ratio]:
    """Return the ratio of each subject's capacity to the baseline's capacity, with a 95% interval."""
    rps = {name: np.array(item.rps) for name, item in served.items()}
    samples = {name: Sample.against_one(rps[baseline], rounds) for name, rounds in rps.items() if name != baseline}
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

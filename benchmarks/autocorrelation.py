"""Does a launch resemble the launch before? The autocorrelation of real launches, of times and of ratios.

    python -m benchmarks.autocorrelation --workload lstm-demo --workload word-lm

Prepares, trains, quantizes and evaluates what the store does not contain yet, then times every candidate of each
workload in forty launches. The table shows the deviations of the candidates' ratios from launch to launch (least,
median and most), the first-order autocorrelation of log times and of log ratios, each the mean over candidates, and
how much wider the autocorrelation makes an interval. In brackets is the range of 95% of random orders of the same
launches. The mean over random orders is subtracted, so that 0 means that the order does not matter.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.repeatability import candidates_of
from storage.artifacts import ArtifactStore
from storage.locks import host_lock
from tasks.benchmark.messages import COPY_SUFFIX, PROFILES
from tasks.benchmark.protocol import LOCK, Measured, Session
from tasks.benchmark.statistics import Array, Sample, autocorrelation, correction_of, launch_values
from tasks.job import Workspace
from tasks.machine import this_machine
from tasks.stages import obtain, prepare
from tasks.workload import read_workload

_WORKLOADS = Path(__file__).parent.parent / "flows" / "workloads"
ORDERS = 2000


def ratios_of(measured: Measured) -> Array:
    """Log ratios of the candidates to baseline and copy, float64 [launches, candidates]."""
    baseline, copy = measured.round_s(measured.baseline), measured.round_s(measured.baseline + COPY_SUFFIX)
    samples = [
        Sample.against_two(measured.round_s(name), baseline, copy)
        for name in measured.names()
        if name not in (measured.baseline, measured.baseline + COPY_SUFFIX)
    ]
    return np.stack([sample.logs for sample in samples], 1)


def times_of(measured: Measured) -> Array:
    """Log times of every subject, float64 [launches, subjects]."""
    return np.stack([launch_values(np.log(measured.round_s(name))) for name in measured.names()], 1)


def resemblance(logs: Array) -> tuple[float, float, float]:
    """Mean first-order autocorrelation of the columns, and the range of 95% of random orders; see the module."""
    generator = np.random.default_rng(0)
    centred = logs - logs.mean(0)
    centred /= np.sqrt((centred**2).sum(0))

    def of(ordered: Array) -> float:
        return float((ordered[1:] * ordered[:-1]).sum(0).mean())

    by_chance = np.array([of(generator.permutation(centred)) for _ in range(ORDERS)])
    low, high = np.quantile(by_chance - by_chance.mean(), (0.025, 0.975))
    return of(centred) - float(by_chance.mean()), float(low), float(high)


def cells_of(measured: Measured) -> Iterator[str]:
    """One line of the table."""
    ratios = ratios_of(measured)
    deviations = sorted(ratios.std(0, ddof=1))
    yield " / ".join(f"{each:.1%}" for each in (deviations[0], np.median(deviations), deviations[-1]))
    for logs in (times_of(measured), ratios):
        seen, low, high = resemblance(logs)
        yield f"{seen:.2f} ({low:.2f} to {high:.2f})"
    correction = correction_of(len(ratios), autocorrelation(list(ratios.T)))
    yield f"{math.sqrt(correction.inflation):.2f}"


def main() -> None:
    """Print one line for each workload and state of the caches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", help="a built-in workload; repeatable")
    parser.add_argument("--store", type=Path, default=Path("nightquant-store"))
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--launches", type=int, default=40)
    arguments = parser.parse_args()
    workspace = Workspace(ArtifactStore(arguments.store))
    profile = PROFILES[arguments.profile].model_copy(update={"launches": arguments.launches, "budget_s": 0.0})
    print(this_machine().cpu)
    print("| workload | caches | load | deviation of ratios | times | ratios | wider by |")
    print(f"|{'---|' * 7}", flush=True)
    for name in arguments.workload or ["lstm-demo", "word-lm"]:
        workload = read_workload(_WORKLOADS / f"{name}.toml")
        job = obtain(workspace, workload, prepare(workspace, workload))
        subjects = [each.subject(workspace) for each in candidates_of(job, workspace)]
        with host_lock(LOCK):
            measured = Session(workload.baseline_name, profile).measure(subjects)
        for caches in ("warm", "cold"):
            cells = " | ".join(cells_of(measured.with_caches(caches)))
            print(f"| {name} | {caches} | {os.getloadavg()[2]:.1f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

"""The nights that `benchmarks.decisions` simulates: the noise, the times, and a session that only adds them up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from storage.results import Caches
from tasks.measure.benchmark.messages import LaunchReport, Subject, SubjectReport
from tasks.measure.benchmark.protocol import Session
from tasks.measure.benchmark.statistics import CHECKED_AT, Array, Sample
from tasks.workload.recipe import CandidateName

BASELINE = "float/torchscript"
CANDIDATES = tuple(f"{letter}/torchscript" for letter in "abcdefgh")
COPY = CandidateName.parse(BASELINE).key("a/a")
SUBJECTS = (BASELINE, COPY, *CANDIDATES)
BIAS, OUTLIER = 0.03, 1.3


@dataclass(frozen=True)
class Conditions:
    """How subjects' log times vary."""

    tau: float
    sigma: float
    noisy: float = 1.0
    correlation: float = 0.0
    outlier: bool = False

    def __str__(self) -> str:
        if self.noisy != 1:
            return f"first × {self.noisy:g}"
        if self.correlation:
            return f"AR(1) {self.correlation:g}"
        return "outlier" if self.outlier else "equal"

    def night(self, generator: np.random.Generator, ratios: tuple[float, float], rounds: int) -> Night:
        """Draw all that a night can measure; the candidates' speeds lie between two ratios to the baseline's."""
        logs = generator.normal(0, self.sigma, (CHECKED_AT[-1], len(SUBJECTS), rounds))
        logs += generator.normal(0, self.tau, (*logs.shape[:2], 1))
        for launch in range(1, len(logs)):
            logs[launch] *= math.sqrt(1 - self.correlation**2)
            logs[launch] += self.correlation * logs[launch - 1]
        logs[:, SUBJECTS.index(CANDIDATES[0])] *= self.noisy
        if self.outlier:
            logs[generator.integers(CHECKED_AT[0]), generator.integers(len(SUBJECTS))] += math.log(OUTLIER)
        true = np.concatenate([np.zeros(2), -np.log(np.geomspace(*ratios, len(CANDIDATES)))])
        true[generator.integers(len(SUBJECTS))] += math.log(1 + BIAS) * generator.choice([-1, 1])
        return Night(logs + true[:, None], true)


@dataclass(frozen=True)
class Night:
    """Log seconds per call, float64 [launches, subjects, rounds], and their true values, float64 [subjects]."""

    logs: Array
    true: Array

    def true_ratio(self, name: str) -> float:
        """The logarithm of the ratio that the measured one estimates."""
        return float(self.true[:2].mean() - self.true[SUBJECTS.index(name)])

    def samples(self) -> dict[str, Sample]:
        """Each subject's ratios, from all launches."""
        seconds = np.exp(self.logs)
        baseline, copy = seconds[:, 0], seconds[:, 1]
        samples = {
            name: Sample.against_two(seconds[:, index], baseline, copy) for index, name in enumerate(SUBJECTS) if index
        }
        return samples | {SUBJECTS[1]: Sample.against_one(copy, baseline)}


@dataclass(frozen=True)
class Machine(Session):
    """A session whose launches take no time."""

    night: Night | None = None
    names: tuple[str, ...] = SUBJECTS

    def _launch(
        self, subjects: Sequence[Subject], earlier: Sequence[LaunchReport], caches: Caches, *_: object
    ) -> LaunchReport:
        assert self.night is not None
        reports = {}
        for subject in subjects:
            times = tuple(np.exp(self.night.logs[len(earlier), self.names.index(subject.key)]).tolist())
            reports[subject.key] = SubjectReport(
                load_s=0, first_call_s=0, calls_per_block=1, round_s=times, single_s=(), cold_s=times
            )
        return LaunchReport(subjects=reports, refused={}, modules=())


def subject(key: str) -> Subject:
    """Return the subject with this key."""
    is_copy = key == COPY
    return Subject(name=CandidateName.parse(BASELINE if is_copy else key), setting="a/a" if is_copy else "primary")


def lines() -> Iterator[Conditions]:
    """List what is simulated."""
    for noise in ((0.01, 0.02), (0.03, 0.05), (0.03, 0.10), (0.10, 0.10), (0.10, 0.20), (0.20, 0.20)):
        yield Conditions(*noise)
    for noise, change in product(
        ((0.03, 0.05), (0.10, 0.10)),
        ({"noisy": 3.0}, {"noisy": 6.0}, {"correlation": 0.3}, {"correlation": 0.5}, {"outlier": True}),
    ):
        yield replace(Conditions(*noise), **change)
    yield Conditions(0.03, 0.05, noisy=40.0)

"""Measure speed: of trials in two launches, without memory and proofs, and of layers, to find which to keep in float.

Layers that lose the most quality per unit of time saved come first. A layer's noise approximates the quality that it
loses, and its share of the float model's time the time that int8 saves. Differences of less than a factor of two are
ignored; otherwise, noise in the timings would decide the order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tasks.data.outputs import intra_op_threads
from tasks.measure.benchmark.messages import Profile
from tasks.measure.benchmark.stage import BenchmarkCandidate, alone_on_host
from tasks.measure.sensitivity import sensitivity
from tasks.runtimes.build import model_source
from tasks.search.trial import RankedLayer, Speed, Timed
from tasks.values.job import Job, Workspace
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

_LAUNCHES = 2
PROFILE = Profile(
    name="search", launches=_LAUNCHES, rounds=8, budget_s=0, warm_up_s=0.03, single_calls=10, single_s=0.02,
    cold_rounds=4,
)  # fmt: skip
_COLD_ROUNDS = 12  # number of rounds with cold caches, if `benchmark.caches` is cold
# The model is called until both limits are reached.
_CALLS = 8
_TIMED_S = 0.5
_STEP_DB = 3.0  # a factor of two
_LEAST_SHARE = 1e-4  # smaller shares of the model's time cannot be distinguished from noise


def time_trials(
    job: Job[Workload],
    baseline: BenchmarkCandidate,
    candidates: Sequence[BenchmarkCandidate],
    workspace: Workspace,
    *,
    limit_s: float | None = None,
) -> Timed:
    """Measure the speed of candidates and the baseline, while no other benchmark runs on the host.

    The intervals also use the other subjects' variances, because two launches are too few to estimate a variance.
    """
    settings = job.workload.benchmark
    profile = PROFILE.model_copy(update={"cold_rounds": _COLD_ROUNDS}) if settings.caches == "cold" else PROFILE
    subjects = [candidate.subject(workspace) for candidate in (baseline, *candidates)]
    began = time.monotonic()
    with alone_on_host(job.workload, baseline.candidate.name, profile, workspace, limit_s) as session:
        waited_s = time.monotonic() - began
        measured = session.measure(subjects).with_caches(settings.caches)
    names = {candidate.key: candidate.candidate.name for candidate in candidates}
    ratios = {names[key]: measured.moderated(key) for key in names if key in measured.names()}
    return Timed(
        speeds={
            name: Speed(value=ratio.value, low=ratio.low, high=ratio.high, launches=_LAUNCHES)
            for name, ratio in ratios.items()
        },
        refused={names[key]: reason for key, reason in measured.refused.items()},
        waited_s=waited_s,
    )


def float_order(job: Job[Workload], recipe: Recipe, workspace: Workspace) -> tuple[RankedLayer, ...]:
    """Return a recipe's quantized layers, sorted by quality lost per unit of time saved, largest first."""
    ranking, source = sensitivity(job, recipe, workspace), model_source(job, workspace)
    with intra_op_threads(job.workload.benchmark.threads):
        shares = time_shares(
            source.float_model(), tuple(source.example_inputs.values()), [layer.module for layer in ranking]
        )
    layers = [
        RankedLayer(module=layer.module, type=layer.type, sqnr_db=layer.sqnr_db, time_share=shares[layer.module])
        for layer in ranking
    ]
    return in_order(layers)


def in_order(layers: Sequence[RankedLayer]) -> tuple[RankedLayer, ...]:
    """Sort layers by quality lost per unit of time saved, in steps of a factor of two."""

    def order(layer: RankedLayer) -> tuple[int, float]:
        gain_db = layer.sqnr_db + 10 * math.log10(max(layer.time_share, _LEAST_SHARE))
        return round(gain_db / _STEP_DB), layer.sqnr_db

    return tuple(sorted(layers, key=order))


@torch.inference_mode()
def time_shares(model: nn.Module, inputs: Sequence[Tensor], modules: Sequence[str]) -> dict[str, float]:
    """Measure each module's share of a model's time with forward hooks, based on each module's shortest call."""
    stopwatches = {path: _Stopwatch() for path in ("", *modules)}
    with ExitStack() as hooks:
        for path, stopwatch in stopwatches.items():
            module = model.get_submodule(path)
            hooks.callback(module.register_forward_pre_hook(stopwatch.start).remove)
            hooks.callback(module.register_forward_hook(stopwatch.stop).remove)
        began, call = time.perf_counter(), 0
        while call < _CALLS or time.perf_counter() - began < _TIMED_S:
            model(*inputs)
            for stopwatch in stopwatches.values():
                stopwatch.end_call(counts=call > 0)  # the first call is slower
            call += 1
    total = stopwatches[""].shortest_s
    return {path: min(1.0, stopwatches[path].shortest_s / total) for path in modules}


@dataclass
class _Stopwatch:
    """Stopwatch for a module, which may run several times in one call of the model."""

    began: float = 0.0
    spent_s: float = 0.0
    shortest_s: float = math.inf

    def start(self, *_: object) -> None:
        self.began = time.perf_counter()

    def stop(self, *_: object) -> None:
        self.spent_s += time.perf_counter() - self.began

    def end_call(self, *, counts: bool) -> None:
        self.shortest_s = min(self.shortest_s, self.spent_s) if counts else math.inf
        self.spent_s = 0.0

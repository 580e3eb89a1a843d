"""Loaders of planted subjects for benchmark children: how much work a subject does stands in its file ``plan.json``.

``work`` is the number of matrix products in a call, ``wrong`` makes the output differ from the golden one, ``fails`` is
an exception's message, ``dies`` a signal, ``waits`` a FIFO, ``mebibytes`` the memory that it holds, ``diary`` a file to
which each call adds its process. With ``simulated``, a call takes no real time: the clock that blocks are timed with is
put forward, by 10 to 30% more or less than the work asks for, or than ``cold_work`` does where the caches have just
been emptied.
"""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import torch

from tasks.measure.benchmark import launch, rounds
from tasks.measure.benchmark.messages import Profile, Subject
from tasks.measure.benchmark.rounds import Loaded
from tasks.workload.recipe import CandidateName

LOADER = "tests.tasks.measure.benchmark.planted:load"
TINY = Profile(
    name="tiny", launches=2, rounds=6, budget_s=0, block_s=0.01, warm_up_s=0.02, single_calls=30, single_s=0.02,
    cold_rounds=6,
)  # fmt: skip


class Clock:
    """Stands in for the module ``time`` where blocks are timed, in this process."""

    def __init__(self) -> None:
        self._now, self._noise = 0.0, random.Random(1)
        self.is_cold = False

    def perf_counter(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def work(self, amount: int) -> None:
        """Let the time pass that `amount` takes on a machine with other work."""
        self._now += amount * 2e-5 * self._noise.uniform(0.9, 1.3)

    def evict(self) -> None:
        """Make the next call a cold one."""
        self.is_cold = True


def plan(folder: Path, name: str, **details: Any) -> Subject:
    """Write a plan and give the subject that follows it."""
    place = folder / name.replace("/", "-")
    place.mkdir()
    (place / "plan.json").write_text(json.dumps(details), encoding="utf-8")
    return Subject(name=CandidateName.parse(name), folder=str(place))


def load(subject: Subject) -> Loaded:
    """Follow the subject's plan."""
    details = json.loads((Path(subject.folder) / "plan.json").read_text(encoding="utf-8"))
    if "fails" in details:
        raise RuntimeError(details["fails"])
    if "waits" in details:
        # Whoever reads the FIFO gets this process's number, and then nothing until the process has ended.
        with Path(details["waits"]).open("w", encoding="ascii") as fifo:
            fifo.write(f"{os.getpid()}\n")
            fifo.flush()
            threading.Event().wait()
    if "dies" in details:
        os.kill(os.getpid(), details["dies"])
    work = details["work"]
    matrix = torch.eye(96)
    golden = matrix * (2 if details.get("wrong") else 1)

    if details.get("simulated"):
        clock = rounds.time if isinstance(rounds.time, Clock) else Clock()
        rounds.time = clock  # type: ignore[assignment]
        launch.Eviction = lambda processors: clock.evict  # type: ignore[assignment, misc]

        def simulated() -> torch.Tensor:
            clock.work(details.get("cold_work", work) if clock.is_cold else work)
            clock.is_cold = False
            return matrix

        return Loaded(simulated, (golden,))

    held = torch.ones(details.get("mebibytes", 0), 1 << 18)

    def call() -> torch.Tensor:
        if diary := details.get("diary"):
            with Path(diary).open("a", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")
        result = matrix
        for _ in range(work):
            result = result @ matrix
        return result

    call.held = held  # type: ignore[attr-defined]
    return Loaded(call, (golden,))

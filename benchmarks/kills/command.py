"""Nights of the command, killed: SIGKILL to the flow's process, to a stage worker, to its own server, or to all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.kills.nights import ask, hearing, require_heard, require_kept, require_true
from benchmarks.kills.store import Files, require_each_row_once, require_whole

# After which line of the night, and up to how many seconds later.
MOMENTS = {
    "Prefect's server …": 4.0,
    "prepare data set …": 1.0,
    "obtain checkpoint …": 1.0,
    "build …": 1.0,
    "evaluate …": 1.0,
    "benchmark …": 20.0,
    "first: benchmark: done": 4.0,
    "second: benchmark: done": 4.0,
    "package …": 15.0,
    "package: done": 4.0,
}
TARGETS = ("flow", "stage worker", "all", "server")
# What the command line of a process holds that is killed while the flow's own lives.
_OTHERS = {"stage worker": "spawn_main", "server": "flows.execution.server_process"}
GONE_S = 10.0
NIGHT_S = 600.0
# 3: a machine that others load may be slower than in an earlier night.
_WELL = (0, 3)


@dataclass(frozen=True)
class Kill:
    """Where a night was killed, and what was."""

    target: str
    moment: str
    after_s: float


def kill_commands(folder: Path, times: int, seed: int) -> Iterator[Kill]:
    """Kill one night after the other over one store, then let one end; yield each kill once it is looked into.

    Raises
    ------
    RuntimeError
        Something was left behind, or is not whole.
    """
    chance = random.Random(seed)
    store = folder / "store"
    before: Files = {}
    for number in range(times):
        moment = chance.choice(list(MOMENTS))
        # Every target in turn, so that few times meet all of them.
        kill = Kill(TARGETS[number % len(TARGETS)], moment, chance.uniform(0.0, MOMENTS[moment]))
        with hearing() as (url, heard):
            said = _carry_out(kill, _Night(folder, number, url), chance)
        if "package …" in said:
            require_heard(store, number, heard)
        require_kept(store, number, said)
        before = require_whole(store, before, killed=True)
        yield kill
    with hearing() as (url, heard), _Night(folder, times, url) as night:
        night.end()
    if night.process.returncode not in _WELL:
        raise RuntimeError(f"The night after them ended with {night.process.returncode}:\n{night.said()}")
    require_heard(store, times, heard)
    require_whole(store, before, killed=False)
    require_each_row_once(store)
    require_true(store)


def _carry_out(kill: Kill, night: _Night, chance: random.Random) -> str:
    """Kill as planned; return what the night had said."""
    with night:
        night.wait_for(kill.moment, kill.after_s)
        if kill.target in _OTHERS:
            found = [each for each in night.others() if _OTHERS[kill.target] in " ".join(command_of(each))]
            kill_processes(chance.sample(found, min(1, len(found))))
            night.end()  # it goes on without that, or says what failed
            if night.process.returncode not in (1, *_WELL):
                raise RuntimeError(f"{kill}: the night ended with {night.process.returncode}:\n{night.said()}")
        elif kill.target == "flow":
            kill_processes(night.own())
        else:
            kill_processes([*night.others(), *night.own()])
    return night.said()


class _Night:
    """A quick night in a process of its own, all of whose processes carry a mark; on leaving, all must be gone."""

    def __init__(self, folder: Path, number: int, webhook: str) -> None:
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._log = folder / f"{self._mark}.log"
        command = ["nightly", *ask(folder, number), "--profile", "quick", "--store", str(folder / "store")]
        own = {"PREFECT_HOME": str(folder / "prefect"), "MARK_OF_THIS_NIGHT": self._mark}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows", *command],
                env=os.environ | own | {"NIGHTQUANT_WEBHOOK_URL": webhook},
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> _Night:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            kill_processes([*self.others(), *self.own()])
        self.process.wait()
        deadline = time.monotonic() + GONE_S
        while (left := self.others()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left and kind is None:
            lines = [" ".join(command_of(each)) for each in left]
            kill_processes(left)
            raise RuntimeError(f"Left {GONE_S:.0f} s later: {lines}")

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, text: str, after_s: float) -> None:
        """Wait until the night has said `text`, and then a while; no longer than it runs."""
        while text not in self.said() and self.process.poll() is None:
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(after_s)

    def end(self) -> None:
        try:
            self.process.wait(NIGHT_S)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"The night has not ended:\n{self.said()}") from error

    def own(self) -> list[psutil.Process]:
        """Its own process, [] if it has ended."""
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(self.process.pid)]
        return []

    def others(self) -> list[psutil.Process]:
        """Its living processes, but for its own."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                marked = process.environ().get("MARK_OF_THIS_NIGHT") == self._mark
                if marked and process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def command_of(process: psutil.Process) -> list[str]:
    """The command line, [] of a process that is gone."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def kill_processes(processes: list[psutil.Process]) -> None:
    """SIGKILL to each that is alive."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)

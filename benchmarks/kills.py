"""Nights that are killed at random moments of every stage: what they leave behind, and whether the next one goes on.

    python -m benchmarks.kills [--times 50] [--seed 20261121]

Each time SIGKILL goes to the flow's process alone, to one of its stage workers, or to every process at once. Prints
one line per kill, and ends with an error at the first thing that is wrong: a process that is left 10 s later, a store
that is not whole, an artifact that has changed, a last night that does not complete, or a row that is there twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from storage.check import check
from storage.results.catalog import CATALOG
from storage.results.query import run_query

# After which line of the night, and up to how many seconds later.
MOMENTS = {
    "Prefect's server …": 4.0,
    "prepare data set …": 1.0,
    "obtain checkpoint …": 1.0,
    "build …": 1.0,
    "evaluate …": 1.0,
    "benchmark …": 20.0,
    "benchmark: done": 4.0,
}
TARGETS = ("flow", "stage worker", "all")
_GONE_S = 10.0
_NIGHT_S = 600.0
# 3: a machine that others load may be slower than in an earlier night.
_WELL = (0, 3)
_KEYS = "run_id, recipe, runtime, setting, threads, batch_size, attempt"


@dataclass(frozen=True)
class Kill:
    """Where a night was killed, and what was."""

    target: str
    moment: str
    after_s: float


def kill_nights(folder: Path, times: int, seed: int) -> Iterator[Kill]:
    """Kill one night after the other over one store, then let one end; yield each kill once it is looked into.

    Raises
    ------
    RuntimeError
        Something was left behind, or is not whole.
    """
    chance = random.Random(seed)
    store = folder / "store"
    before: dict[str, tuple[int, int]] = {}
    for number in range(times):
        moment = chance.choice(list(MOMENTS))
        # Every target in turn, so that few times meet all of them.
        kill = Kill(TARGETS[number % len(TARGETS)], moment, chance.uniform(0.0, MOMENTS[moment]))
        _carry_out(kill, folder, chance)
        before = _whole(store, before, {CATALOG})
        yield kill
    with _Night(folder) as night:
        night.end()
    if night.process.returncode not in _WELL:
        raise RuntimeError(f"The night after them ended with {night.process.returncode}:\n{night.said()}")
    _whole(store, before, set())
    if run_query(str(store), f"SELECT {_KEYS} FROM measurements GROUP BY ALL HAVING count(*) > 1").num_rows:
        raise RuntimeError("A row is there twice.")


def _carry_out(kill: Kill, folder: Path, chance: random.Random) -> None:
    with _Night(folder) as night:
        night.wait_for(kill.moment, kill.after_s)
        if kill.target == "stage worker":
            workers = [each for each in night.others() if "spawn_main" in " ".join(_command(each))]
            _kill(chance.sample(workers, min(1, len(workers))))
            night.end()  # it goes on without that stage, or says what failed
            if night.process.returncode not in (1, *_WELL):
                raise RuntimeError(f"{kill}: the night ended with {night.process.returncode}:\n{night.said()}")
        elif kill.target == "flow":
            _kill([psutil.Process(night.process.pid)])
        else:
            _kill([*night.others(), psutil.Process(night.process.pid)])


class _Night:
    """A quick night in a process of its own, all of whose processes carry a mark; on leaving, all must be gone."""

    def __init__(self, folder: Path) -> None:
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._log = folder / f"{self._mark}.log"
        command = ["nightly", "--workload", "lstm-demo", "--profile", "quick", "--store", str(folder / "store")]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows", *command],
                env=os.environ | {"PREFECT_HOME": str(folder / "prefect"), "MARK_OF_THIS_NIGHT": self._mark},
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> _Night:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            _kill([*self.others(), psutil.Process(self.process.pid)])
        self.process.wait()
        deadline = time.monotonic() + _GONE_S
        while (left := self.others()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left and kind is None:
            lines = [" ".join(_command(each)) for each in left]
            _kill(left)
            raise RuntimeError(f"Left {_GONE_S:.0f} s later: {lines}")

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
            self.process.wait(_NIGHT_S)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"The night has not ended:\n{self.said()}") from error

    def others(self) -> list[psutil.Process]:
        """Its living processes, but for its own."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                marked = process.environ().get("MARK_OF_THIS_NIGHT") == self._mark
                if marked and process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def _whole(store: Path, before: dict[str, tuple[int, int]], allowed: set[str]) -> dict[str, tuple[int, int]]:
    """Refuse a store that is not whole; give each file of each finished artifact, which must not change any more."""
    # Killed between a file of results and the catalog, a night leaves the catalog of the one before it.
    problems = [each for each in check(store).problems if each.where not in allowed]
    files = (path for path in (store / "artifacts").glob("*/[0-9a-f][0-9a-f]/*/**/*") if path.is_file())
    after = {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}
    if problems or not before.items() <= after.items():
        raise RuntimeError(f"The store is not whole: {problems or 'an artifact has changed'}")
    return after


def main() -> None:
    """Print one line per kill."""
    parser = argparse.ArgumentParser(description="What do killed nights leave behind?")
    parser.add_argument("--times", type=int, default=50, help="nights to kill")
    parser.add_argument("--seed", type=int, default=20261121, help="of the moments")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        for kill in kill_nights(Path(folder), arguments.times, arguments.seed):
            print(f"{kill.target:14} {kill.after_s:5.1f} s after {kill.moment}", flush=True)
    print(f"{arguments.times} kills in {time.monotonic() - began:.0f} s: nothing left, store whole, no row twice.")


if __name__ == "__main__":
    main()

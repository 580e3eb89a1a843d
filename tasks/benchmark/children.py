"""Starting a child process for a measurement, and waiting for it without doing anything."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import tasks
from storage.errors import MeasurementError
from tasks.benchmark.messages import write_message
from tasks.benchmark.process import environment
from tasks.refs import Frozen

Report = TypeVar("Report", bound=Frozen)
_LAST_LINES = 5


@dataclass(frozen=True)
class Limit:
    """By when children must have ended: `seconds` after this was made; None for no limit."""

    seconds: float | None = None
    made_at: float = field(default_factory=time.monotonic)

    def left_s(self) -> float | None:
        """Seconds until then, not negative."""
        return None if self.seconds is None else max(0.0, self.made_at + self.seconds - time.monotonic())


def run_child(module: str, spec: Frozen, report: type[Report], threads: int, limit: Limit) -> Report:
    """Run ``main(SPEC, OUT)`` of `module` in a process of its own and read the report that it writes.

    This process sleeps in the kernel until the child ends. The child never outlives it: an exception here kills the
    child's process group, and the child ends by itself when its standard input closes.

    Raises
    ------
    MeasurementError
        The child ended without a report; the message names the signal or the last lines that it wrote. Or `limit` was
        reached, and the child was ended.
    """
    with tempfile.TemporaryDirectory(prefix="nightquant-") as name:
        folder = Path(name)
        write_message(spec, folder / "spec.json")
        code = _run(module, folder, threads, limit)
        out = folder / "out.json"
        if code != 0 or not out.is_file():
            raise MeasurementError(_how_it_ended(module, code, (folder / "log").read_text(errors="replace")))
        return report.model_validate_json(out.read_text(encoding="utf-8"))


def _run(module: str, folder: Path, threads: int, limit: Limit) -> int:
    root = Path(tasks.__path__[0]).parent
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH", ""))))
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [
                sys.executable,
                "-P",  # a module of the working folder must not be taken for one of ours
                "-m",
                "tasks.benchmark.child",
                module,
                str(folder / "spec.json"),
                str(folder / "out.json"),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment(threads) | {"PYTHONPATH": path},
            # A group of its own: Control-C reaches the parent, which decides what becomes of the child.
            start_new_session=True,
        ) as process,
    ):
        try:
            return _wait(process, limit)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _wait(process: subprocess.Popen[bytes], limit: Limit) -> int:
    left_s = limit.left_s()
    if left_s is not None and not _ends_within(process, left_s):
        raise MeasurementError(
            f"The benchmark was ended: it took longer than {limit.seconds:.0f} s.",
            hint="If it needs longer, raise NIGHTQUANT_STAGE_TIMEOUT_S.",
        )
    return process.wait()


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Sleep until the process ends: its own wait(timeout) polls, up to a thousand times a second."""
    if sys.platform != "linux":
        waiting = threading.Thread(target=process.wait, daemon=True)
        waiting.start()
        waiting.join(seconds)
        return not waiting.is_alive()
    descriptor = os.pidfd_open(process.pid)
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def _how_it_ended(module: str, code: int, log: str) -> str:
    what = module.rpartition(".")[2]
    if code < 0:
        name = signal.Signals(-code).name
        hint = " Most likely memory ran out." if -code == signal.SIGKILL else ""
        return f"The {what} process was ended by {name}.{hint}{_tail(log)}"
    return f"The {what} process ended with exit code {code} and no report.{_tail(log)}"


def _tail(log: str) -> str:
    lines = log.strip().splitlines()[-_LAST_LINES:]
    return "\n" + "\n".join(lines) if lines else ""

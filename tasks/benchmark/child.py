"""A measurement's child process: started and waited for by `run_child`, entered by `main`.

It is run as ``python -P -m tasks.benchmark.child MODULE SPEC OUT``, and imports little, to end with its parent soon.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar

import tasks
from storage.errors import MeasurementError

if TYPE_CHECKING:
    from tasks.benchmark.messages import ChildSpec
    from tasks.refs import Frozen

Report = TypeVar("Report", bound="Frozen")
_LAST_LINES = 5
_CRASHED = "A library crashed in it: update the runtime's package, or leave the runtime out of the recipe."
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "Most likely memory ran out: end other programs, or use a host with more memory.",
    **dict.fromkeys((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE), _CRASHED),
}
_THREAD_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Limit:
    """By when children must have ended: `seconds` after this was made; None for no limit."""

    seconds: float | None = None
    made_at: float = field(default_factory=time.monotonic)

    def left_s(self) -> float | None:
        """Seconds until then, not negative."""
        return None if self.seconds is None else max(0.0, self.made_at + self.seconds - time.monotonic())


def run_child(module: str, spec: ChildSpec, report: type[Report], limit: Limit) -> Report:
    """Run ``run(SPEC)`` of `module` in a process of its own: from the spec as JSON to a report.

    This process sleeps in the kernel until the child ends. The child never outlives it: an exception here kills the
    child's process group, and the child ends by itself when its standard input closes.

    Raises
    ------
    MeasurementError
        The child ended without a report; the message names the signal or the last lines that it wrote. Or `limit` was
        reached, and the child was ended.
    """
    with TemporaryDirectory(prefix="nightquant-") as name:
        folder = Path(name)
        (folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
        code = _run(module, folder, spec.threads, limit)
        out = folder / "out.json"
        if code == 0 and out.is_file():
            return report.model_validate_json(out.read_text(encoding="utf-8"))
        last = (folder / "log").read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        raise MeasurementError("\n".join([f"The {_name(module)} process {describe_end(code)}", *last]))


def describe_end(code: int) -> str:
    """Say how a process ended that has not reported, and what to do; `code` is negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code} and no report."
    return f"was ended by {signal.Signals(-code).name}. {_ADVICE.get(-code, '')}".rstrip()


def _name(module: str) -> str:
    *_, package, name = module.split(".")
    return package if name == "child" else name


def main(module: str, spec: str, out: str) -> None:
    """Run `module` on the file `spec`, write its report to the file `out`, and end the process without a tear-down.

    Two things would cost a second each for nothing: collecting garbage while torch is imported, where there is none,
    and taking the interpreter apart at the end.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.disable()
    run: Callable[[str], Frozen] = import_module(module).run
    gc.freeze()  # what is imported stays: later collections need not look at it either
    gc.enable()
    report = run(Path(spec).read_text(encoding="utf-8"))
    Path(out).write_text(report.model_dump_json(), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent() -> None:
    """Sleep in the kernel until the parent, which holds the other end of standard input, is gone; then end all."""
    os.read(0, 1)
    # A child started by hand has no group of its own; the shell it was started from must not be killed with it.
    end = os.killpg if os.getpgrp() == os.getpid() else os.kill
    end(os.getpid(), signal.SIGKILL)


def _run(module: str, folder: Path, threads: int, limit: Limit) -> int:
    # -P keeps the working folder off the path, where a user's tasks.py would hide this package.
    command = [sys.executable, "-P", "-m", __name__, module, str(folder / "spec.json"), str(folder / "out.json")]
    path = [str(Path(tasks.__path__[0]).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",
        **dict.fromkeys(_THREAD_POOLS, str(threads)),
    }
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | environment,
            # A group of its own: Control-C reaches the parent, which decides what becomes of the child.
            start_new_session=True,
        ) as process,
    ):
        try:
            # In a thread, because Popen's own wait with a timeout polls, and would disturb what is measured.
            waiting = threading.Thread(target=process.wait, daemon=True)
            waiting.start()
            waiting.join(limit.left_s())
            if waiting.is_alive():
                raise MeasurementError(
                    f"The {_name(module)} process was ended: the benchmark took longer than {limit.seconds:.0f} s.",
                    hint="If it needs longer, raise NIGHTQUANT_STAGE_TIMEOUT_S.",
                )
            return process.wait()
        except BaseException:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])

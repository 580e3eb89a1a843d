"""Run measurements in child processes; this module has few imports, so that they soon start to monitor the parent."""

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
    from tasks.measure.benchmark.messages import ChildSpec
    from tasks.values.refs import Frozen

Report = TypeVar("Report", bound="Frozen")
_LAST_LINES = 5
_CRASHED = "A library crashed: update the runtime's package, or remove the runtime from the recipe."
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "The host probably ran out of memory: stop other programs, or use a host with more memory.",
    **dict.fromkeys((signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE), _CRASHED),
}
_THREAD_POOLS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Limit:
    """Deadline for child processes, `seconds` after `started_at`; if `seconds` is None, there is no deadline."""

    seconds: float | None = None
    started_at: float = field(default_factory=time.monotonic)

    def left_s(self) -> float | None:
        """Return the number of seconds until the deadline, at least 0."""
        return None if self.seconds is None else max(0.0, self.started_at + self.seconds - time.monotonic())


def run_child(module: str, spec: ChildSpec, report: type[Report], limit: Limit) -> Report:
    """Start a process that calls the ``run`` function in `module` with `spec` as JSON; return the report.

    The child exits when its standard input closes, so it never outlives the parent.
    """
    with TemporaryDirectory(prefix="nightquant-") as name:
        folder = Path(name)
        (folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
        code = _run(module, folder, spec.threads, limit)
        out = folder / "out.json"
        if code == 0 and out.is_file():
            return report.model_validate_json(out.read_text(encoding="utf-8"))
        tail = (folder / "log").read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        raise MeasurementError("\n".join([f"The {_name(module)} process {describe_end(code)}", *tail]))


def describe_end(code: int) -> str:
    """Describe how a process ended without a report; a negative `code` is a signal number."""
    if code >= 0:
        return f"ended with exit code {code} and without a report."
    return f"was killed by {signal.Signals(-code).name}. {_ADVICE.get(-code, '')}".rstrip()


def _name(module: str) -> str:
    *_, package, name = module.split(".")
    return package if name == "child" else name


def main(module: str, spec: str, out: str) -> None:
    """Run `module` on the `spec` file, write the report to the `out` file, and exit at once."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.disable()  # garbage collection during imports, and the interpreter's finalization, would each take a second
    run: Callable[[str], Frozen] = import_module(module).run
    gc.freeze()  # later collections can skip imported objects
    gc.enable()
    report = run(Path(spec).read_text(encoding="utf-8"))
    Path(out).write_text(report.model_dump_json(), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent() -> None:
    """Sleep in the kernel until the parent closes standard input or exits, then kill this process group."""
    os.read(0, 1)
    # If a user started this process, kill only this process, because its process group may include the shell.
    kill = os.killpg if os.getpgrp() == os.getpid() else os.kill
    kill(os.getpid(), signal.SIGKILL)


def _run(module: str, folder: Path, threads: int, limit: Limit) -> int:
    # ``-P`` keeps the working folder off the import path, because a ``tasks.py`` there would shadow this package.
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
            # In a separate process group, the child does not receive Control-C; the parent stops the child.
            start_new_session=True,
        ) as process,
    ):
        try:
            # Wait in a thread, because ``Popen.wait`` with a timeout polls, and polling would disturb the measurement.
            waiting = threading.Thread(target=process.wait, daemon=True)
            waiting.start()
            waiting.join(limit.left_s())
            if waiting.is_alive():
                raise MeasurementError(
                    f"The {_name(module)} process was stopped, because the benchmark took longer than "
                    f"{limit.seconds:.0f} s.",
                    hint="If the benchmark needs more time, raise NIGHTQUANT_STAGE_TIMEOUT_S.",
                )
            return process.wait()
        except BaseException:
            with suppress(ProcessLookupError):  # the child has already exited
                os.killpg(process.pid, signal.SIGKILL)
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])

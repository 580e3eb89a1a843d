"""Run measurements in child processes; this module has few imports, so that they soon start to monitor the parent."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Generic, TypeVar

import tasks
from storage.errors import MeasurementError

if TYPE_CHECKING:
    from tasks.measure.benchmark.messages import ChildSpec
    from tasks.values.refs import Frozen

Report = TypeVar("Report", bound="Frozen")
_LAST_LINES = 5
_END = b"\n"  # ends an order, which is one line of JSON
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


class Child(Generic[Report]):
    """A process that calls the ``run`` function in a module with a spec, and that waits if ``run`` calls its argument.

    The child exits when its standard input closes, so it never outlives the parent. Close a child after use.
    """

    def __init__(self, module: str, spec: ChildSpec, report: type[Report], limit: Limit) -> None:
        self._module, self._report, self._limit = module, report, limit
        self._temporary = TemporaryDirectory(prefix="nightquant-")
        self._folder = Path(self._temporary.name)
        (self._folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
        self._socket, stdin = socket.socketpair()
        with stdin, (self._folder / "log").open("wb") as log:
            # In a separate process group, the child does not receive Control-C; the parent stops the child.
            self._process = subprocess.Popen(
                _command(module, self._folder),
                stdin=stdin.fileno(),
                stdout=log,
                stderr=log,
                env={**os.environ, **_environment(spec.threads)},
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Return when the child waits for `finish`, or has ended."""
        self._socket.settimeout(self._limit.left_s())
        try:
            self._socket.recv(1)
        except ConnectionResetError:  # the child has ended, which `finish` reports
            return
        except (TimeoutError, BlockingIOError):
            raise self._late() from None

    def finish(self, order: str = "") -> Report:
        """Send an order to the child, wait for its end, and return its report."""
        with suppress(OSError):  # the child has ended, which its exit code explains
            self._socket.sendall(order.encode() + _END)
        # Wait in a thread, because ``Popen.wait`` with a timeout polls, and polling would disturb the measurement.
        waiting = threading.Thread(target=self._process.wait, daemon=True)
        waiting.start()
        waiting.join(self._limit.left_s())
        if waiting.is_alive():
            raise self._late()
        code, out = self._process.wait(), self._folder / "out.json"
        if code == 0 and out.is_file():
            return self._report.model_validate_json(out.read_text(encoding="utf-8"))
        tail = (self._folder / "log").read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
        raise MeasurementError("\n".join([f"The {_name(self._module)} process {describe_end(code)}", *tail]))

    def close(self) -> None:
        """Kill the child if it still runs, and delete its files."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):  # the child has just exited
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._socket.close()
        self._temporary.cleanup()

    def _late(self) -> MeasurementError:
        return MeasurementError(
            f"The {_name(self._module)} process was stopped, because the benchmark took longer than "
            f"{self._limit.seconds:.0f} s.",
            hint="If the benchmark needs more time, raise NIGHTQUANT_STAGE_TIMEOUT_S.",
        )


def run_child(module: str, spec: ChildSpec, report: type[Report], limit: Limit) -> Report:
    """Start a child that does not wait, and return its report."""
    with closing(Child(module, spec, report, limit)) as child:
        return child.finish()


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
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_end_with_parent, args=[orders], daemon=True).start()

    def wait() -> str:
        os.write(0, _END)
        return orders.get()

    gc.disable()  # garbage collection during imports, and the interpreter's finalization, would each take a second
    run: Callable[[str, Callable[[], str]], Frozen] = import_module(module).run
    gc.freeze()  # later collections can skip imported objects
    gc.enable()
    report = run(Path(spec).read_text(encoding="utf-8"), wait)
    Path(out).write_text(report.model_dump_json(), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent(orders: SimpleQueue[str]) -> None:
    """Receive an order, and kill this process group when the parent closes standard input or exits."""
    received = b""
    with suppress(ConnectionResetError):
        while chunk := os.read(0, 1 << 16):
            received += chunk
            if received.endswith(_END):
                orders.put(received.decode())
    # If a user started this process, kill only this process, because its process group may include the shell.
    kill = os.killpg if os.getpgrp() == os.getpid() else os.kill
    kill(os.getpid(), signal.SIGKILL)


def _command(module: str, folder: Path) -> list[str]:
    # ``-P`` keeps the working folder off the import path, because a ``tasks.py`` there would shadow this package.
    return [sys.executable, "-P", "-m", __name__, module, str(folder / "spec.json"), str(folder / "out.json")]


def _environment(threads: int) -> dict[str, str]:
    path = [str(Path(tasks.__path__[0]).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0", **dict.fromkeys(_THREAD_POOLS, str(threads))}


if __name__ == "__main__":
    main(*sys.argv[1:])

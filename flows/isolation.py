"""Stages run in worker processes that can be ended: by a timeout, by Control-C, or by the kernel when memory runs out.

Native code holds a thread until it returns, so a thread cannot be timed out; a process can. A worker keeps torch loaded
from stage to stage, and its death fails only the stage that it was at.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError
from tasks.job import Workspace

P = ParamSpec("P")
R = TypeVar("R")

ProgressListener = Callable[[str, float, float, str], None]
STARTED = "started"  # the unit of the first message of every stage, which may have waited for a worker
_DATAGRAM = 4096


@dataclass(frozen=True)
class Finished(Generic[R]):
    """A stage's result, and when its worker began and ended it (seconds of the host's monotonic clock)."""

    value: R
    began: float
    ended: float


@dataclass
class Workers:
    """A pool of worker processes, one stage each at a time.

    Parameters
    ----------
    count
        Worker processes.
    threads
        Intra-op threads that torch may use in each.
    listener
        Called with stage label, work done, all work and unit, from a thread of this process.
    """

    count: int
    threads: int
    listener: ProgressListener | None = None
    _folder: tempfile.TemporaryDirectory[str] = field(init=False, repr=False)
    _socket: socket.socket = field(init=False, repr=False)
    _pool: ProcessPool = field(init=False, repr=False)
    _waited_for: set[ProcessFuture[Any]] = field(default_factory=set, init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="nightquant-")
        address = str(Path(self._folder.name) / "progress")
        # Datagrams, not a multiprocessing queue: a worker killed in mid-send then holds no lock that others wait for.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        threading.Thread(target=self._listen, daemon=True).start()
        self._pool = self._make_pool()
        return self

    def _make_pool(self) -> ProcessPool:
        return ProcessPool(
            max_workers=self.count,
            context=multiprocessing.get_context("spawn"),
            initializer=_begin_worker,
            initargs=(self.threads,),
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.stop()
            return
        self._pool.close()  # type: ignore[no-untyped-call]  # pebble's own annotations stop here
        self._clean_up()

    def stop(self) -> None:
        """End the workers now, whatever they are at; stages that are waited for or come later are refused."""
        with self._lock:
            self._stopped = True
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._clean_up()
        for future in tuple(self._waited_for):
            # A stage that no worker had acknowledged yet is forgotten by the pool: whoever waits would wait for ever.
            future.cancel()  # type: ignore[no-untyped-call]

    def _clean_up(self) -> None:
        self._pool.join()
        self._socket.close()
        self._folder.cleanup()

    def run(
        self,
        stage: Callable[Concatenate[Workspace, P], R],
        label: str,
        timeout_s: float | None,
        store: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Finished[R]:
        """Run a function of `tasks.stages` in a worker; return its result and when it ran.

        The worker opens the store and gives the stage a workspace on it.

        Raises
        ------
        MeasurementError
            The stage took longer than `timeout_s`, or its process died (out of memory, most often).
        Exception
            Whatever the stage raised.
        """
        call = (stage, label, store, str(Path(self._folder.name) / "progress"), args, kwargs)
        try:
            try:
                return self._result(call, timeout_s)
            except BrokenProcessPool:
                # A worker that died with nothing to do takes the pool with it. What it gave up may simply be run again:
                # artifacts are found by their digest.
                return self._result(call, timeout_s)
        except FutureTimeoutError as error:
            raise MeasurementError(
                f"{label}: ended after {timeout_s:.0f} s.",
                hint="If it needs longer, raise NIGHTQUANT_STAGE_TIMEOUT_S.",
            ) from error
        except BrokenProcessPool as error:
            raise MeasurementError(f"{label}: the worker processes keep dying.") from error
        except ProcessExpired as error:
            raise MeasurementError(f"{label}: {_how_it_died(error.exitcode)}") from error
        except CancelledError as error:
            raise MeasurementError(f"{label}: stopped with the run.") from error

    def _result(self, call: tuple[object, ...], timeout_s: float | None) -> Finished[Any]:
        with self._lock:
            if self._stopped:
                raise CancelledError
            if not self._pool.active:
                self._pool.stop()  # type: ignore[no-untyped-call]
                self._pool.join()
                self._pool = self._make_pool()
            future = self._pool.schedule(run_stage, args=call, timeout=timeout_s)
            self._waited_for.add(future)
        try:
            finished: Finished[Any] = future.result()
            return finished
        finally:
            self._waited_for.discard(future)

    def _listen(self) -> None:
        while True:
            try:
                message = self._socket.recv(_DATAGRAM)
            except OSError:  # closed with the pool: nothing more will come
                return
            if self.listener is not None and message:
                label, done, total, unit = json.loads(message)
                self.listener(label, done, total, unit)


def run_stage(
    stage: Callable[..., R], label: str, store: str, address: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> Finished[R]:
    """Call a stage with the store opened and progress sent to a Unix datagram socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)

        def progress(done: float, total: float, unit: str = "") -> None:
            try:
                sender.sendto(json.dumps([label, done, total, unit]).encode(), address)
            except OSError:
                # Nobody listens, or the reader is behind: progress is for the eye and may be lost.
                return

        progress(0, 0, STARTED)
        began = time.monotonic()
        value = stage(Workspace(ArtifactStore(store), progress), *args, **kwargs)
        return Finished(value, began, time.monotonic())


def _begin_worker(threads: int) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    # Control-C reaches the whole process group; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """End this process when the one that started it is gone: SIGKILL leaves nobody to tell it."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _how_it_died(exitcode: int | None) -> str:
    if exitcode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return "its process was killed, most likely because memory ran out. Use a smaller batch or fewer workers."
    return f"its process died with exit code {exitcode}."

"""Worker processes that can be stopped by a timeout, by Control-C, or by the kernel when memory runs out."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar, TypeVarTuple

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from storage.artifacts import ArtifactStore
from storage.errors import MeasurementError, NightquantError
from storage.root import set_cache_folder
from tasks.environment.libraries import library_error
from tasks.environment.machine import available_cores, memory_in_use, return_freed_memory
from tasks.values.job import Workspace

R = TypeVar("R")
Ts = TypeVarTuple("Ts")
ProgressListener = Callable[[str, float, float, str], None]
STARTED = "started"  # unit in the progress message that reports the start of a stage
_DATAGRAM = 4096
_MUCH = 100 << 20  # growth in bytes after which it is worth 0.3 s to collect garbage


class LostError(MeasurementError):
    """The stage exceeded its time limit, or its process died."""


class StoppedError(MeasurementError):
    """The run was stopped before the stage ended."""


def threads_each(at_once: int) -> int:
    """Return the number of threads of each worker if `at_once` workers share this host's processors."""
    return max(1, available_cores() // at_once)


class Workers:
    """Pool of `count` worker processes, each of which runs one stage at a time with `threads` torch threads."""

    def __init__(self, count: int, threads: int, cache: str = "", listener: ProgressListener | None = None) -> None:
        self._count, self._initargs, self._listener = count, (threads, cache), listener
        self._folder = tempfile.TemporaryDirectory(prefix="nightquant-")
        self._address = str(Path(self._folder.name) / "progress")
        # Use datagrams, because a worker that is killed while writing to a multiprocessing queue would leave the queue
        # locked.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._address)
        threading.Thread(target=self._listen, daemon=True).start()
        self._awaited: set[ProcessFuture[Any]] = set()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._pool = self._start_pool()

    def _start_pool(self) -> ProcessPool:
        spawn = multiprocessing.get_context("spawn")
        return ProcessPool(max_workers=self._count, context=spawn, initializer=_begin_worker, initargs=self._initargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the workers at once, and reject waiting and later stages."""
        with self._lock:
            self._stopped.set()
        self._pool.stop()  # type: ignore[no-untyped-call]  # pebble's method lacks annotations
        self._pool.join()
        if self._socket.fileno() != -1:
            # Closing a socket does not wake the listening thread. Do not wait for that thread, because the listener may
            # be waiting for Prefect's server.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._folder.cleanup()
        for future in tuple(self._awaited):
            # A stopped pool drops a stage that no worker has acknowledged; without `cancel`, `run` would wait forever.
            future.cancel()  # type: ignore[no-untyped-call]

    def pause(self, seconds: float) -> bool:
        """Wait for `seconds`, or until the workers are stopped; return whether stages can still run."""
        return not self._stopped.wait(seconds)

    def run(
        self, stage: Callable[[Workspace, *Ts], R], label: str, timeout_s: float | None, store: str, *args: *Ts
    ) -> R:
        """Run a stage in a worker that opens the store, and return the stage's result."""
        future = self._schedule(stage, label, timeout_s, store, *args)
        try:
            result: R = future.result()
            return result
        except FutureTimeoutError as error:
            raise LostError(
                f"{label}: the stage was stopped after {timeout_s:.0f} s.",
                hint="To allow more time, raise NIGHTQUANT_STAGE_TIMEOUT_S or, in a search, its budget.",
            ) from error
        except (BrokenProcessPool, ProcessExpired, CancelledError) as error:
            # A stopped pool kills its workers, and may report a stage as expired before the stage is cancelled.
            if self._stopped.is_set() or isinstance(error, CancelledError):
                raise StoppedError(f"{label}: the stage was stopped because the run ended.") from error
            raise _lost(label, error) from error
        finally:
            self._awaited.discard(future)

    def load(self, stage: Callable[[Workspace], None], label: str, store: str) -> None:
        """Run a stage that imports what later stages need, in a worker that would otherwise wait.

        Nobody waits for the stage. If an import fails, it also fails in the stage that needs it, which reports the
        error.
        """
        if self._count > 1:
            self._schedule(stage, label, None, store)

    def _schedule(
        self, stage: Callable[[Workspace, *Ts], R], label: str, timeout_s: float | None, store: str, *args: *Ts
    ) -> ProcessFuture[R]:
        with self._lock:
            if self._stopped.is_set():
                raise StoppedError(f"{label}: the stage was not started, because the run ended.")
            if not self._pool.active:
                self._pool.stop()  # type: ignore[no-untyped-call]
                self._pool.join()
                self._pool = self._start_pool()
            call = (stage, label, store, self._address, *args)
            future = self._pool.schedule(run_stage, args=call, timeout=timeout_s)
            self._awaited.add(future)
        return future

    def _listen(self) -> None:
        while True:
            try:
                message = self._socket.recv(_DATAGRAM)
            except OSError:  # the socket was closed while this thread called the listener
                return
            if not message:  # the pool has been closed
                return
            if self._listener is not None:
                self._listener(*json.loads(message))


def _lost(label: str, error: BrokenProcessPool | ProcessExpired) -> LostError:
    if isinstance(error, BrokenProcessPool):
        # An idle worker died. Running the stage again is safe, because artifacts are looked up by digest.
        hint = "If the host is running out of memory, lower NIGHTQUANT_WORKERS."
        return LostError(f"{label}: the worker processes died.", hint=hint, transient=True)
    how = f"died with exit code {error.exitcode}."
    if error.exitcode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        how = "was killed, most likely because memory ran out. Use a smaller batch or fewer workers."
    return LostError(f"{label}: its process {how}")


def run_stage(stage: Callable[[Workspace, *Ts], R], label: str, store: str, address: str, *args: *Ts) -> R:
    """Call a stage with an open store, and send its progress to a Unix datagram socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)

        def progress(done: float, total: float, unit: str = "") -> None:
            try:
                sender.sendto(json.dumps([label, done, total, unit]).encode(), address)
            except OSError:
                # If the listener is gone or too slow, drop the message, because only the display needs it.
                return

        progress(0, 0, STARTED)
        before = memory_in_use()
        try:
            return stage(Workspace(ArtifactStore(store), progress), *args)
        except NightquantError:
            raise
        except BaseException as error:  # it may not be possible to pickle a library's error
            raise library_error(f'The stage "{label}" failed', error) from error
        finally:
            _return_memory(before)


def _return_memory(before: int) -> None:
    """Return freed memory to the system after a stage; `before` is the memory in bytes that was in use before it."""
    return_freed_memory()
    # Graphs of models are cycles, and with the threshold in `_begin_worker`, the collector seldom visits old objects.
    if memory_in_use() > before + _MUCH:
        gc.collect()
        return_freed_memory()


def _begin_worker(threads: int, cache: str) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    # Libraries such as torch show progress with tqdm, which creates a named semaphore. A killed worker leaks the
    # semaphore, and Python would report the leak at the end of a run.
    os.environ["TQDM_DISABLE"] = "1"
    with suppress(ImportError):  # tqdm may not be installed
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())
    set_cache_folder(cache)
    # Exporters and compilers create millions of objects that stay in use. With the default thresholds, garbage
    # collection takes a sixth of the time of these stages.
    gc.set_threshold(20_000)
    # Ignore Control-C, which reaches every process in the group; the parent stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Exit when the parent process ends, because a parent that is killed by SIGKILL cannot stop its workers."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

"""Stages for test_isolation; they must be importable by name in a worker process."""

import os
import signal
import threading

from storage.errors import InputError


def echo(*, value, store, progress):
    return value, str(store.root)


def threads(*, store, progress):
    return os.environ["OMP_NUM_THREADS"]


def pid(*, store, progress):
    return os.getpid()


def refuse(*, store, progress):
    raise InputError("It is broken.", hint="Mend it.")


def hang(*, store, progress):
    threading.Event().wait()


def be_killed(*, store, progress):
    os.kill(os.getpid(), signal.SIGKILL)


def tell(*, store, progress):
    progress(1, 2, "steps")

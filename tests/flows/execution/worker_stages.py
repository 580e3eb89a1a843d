"""Stages for test_workers; they must be importable by name in a worker process."""

import os
import signal
import threading

from storage.errors import InputError
from storage.root import cache_folder


def echo(workspace, value):
    return value, str(workspace.store.root)


def threads(workspace):
    return os.environ["OMP_NUM_THREADS"]


def cache(workspace):
    return str(cache_folder("s3://bucket").parent)


def pid(workspace):
    return os.getpid()


def refuse(workspace):
    raise InputError("It is broken.", hint="Mend it.")


def hang(workspace):
    threading.Event().wait()


def be_killed(workspace):
    os.kill(os.getpid(), signal.SIGKILL)


def tell(workspace):
    workspace.progress(1, 2, "steps")

"""The entry of every child process of a measurement: ``python -m tasks.benchmark.child MODULE SPEC OUT``.

Two things cost a second of each and serve nobody: collecting garbage while torch is imported, where there is none, and
taking the interpreter apart at the end. The child ends with its parent from its first moment on, imports included.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from importlib import import_module


def end_with_parent() -> None:
    """End this process, and the group that it leads, as soon as the parent is gone.

    The parent holds the other end of standard input. The thread sleeps in the kernel until then and costs the
    measurement nothing.
    """

    def wait() -> None:
        os.read(0, 1)
        # Whoever starts a child by hand, without a group of its own, does not want to be killed with it.
        end = os.killpg if os.getpgrp() == os.getpid() else os.kill
        end(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def main(module: str, spec: str, out: str) -> None:
    """Run ``main(spec, out)`` of `module`, whose imports come first, and end the process without a tear-down."""
    end_with_parent()
    gc.disable()
    entry = import_module(module).main
    gc.freeze()  # what is imported stays: later collections need not look at it either
    gc.enable()
    entry(spec, out)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

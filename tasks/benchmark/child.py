"""The entry of every child process of a measurement: ``python -m tasks.benchmark.child MODULE SPEC OUT``.

Two things cost a second of each and serve nobody: collecting garbage while torch is imported, where there is none, and
taking the interpreter apart at the end.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module


def main(module: str, spec: str, out: str) -> None:
    """Run ``main(spec, out)`` of `module`, whose imports come first, and end the process without a tear-down."""
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

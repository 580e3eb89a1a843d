"""Peak memory: every subject alone in a process that has loaded no model before.

`tasks.benchmark.child` runs it. This process imports the libraries, computes nothing, and forks one child per subject,
so that what a child's resident memory grows by is the model and its working memory, not imports. A forked child's
high-water mark starts at its own resident memory (Linux ``fork``), so no reset is needed.
"""

from __future__ import annotations

import gc
import importlib
import resource
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

import psutil
import torch

from tasks.benchmark.loading import loader_named
from tasks.benchmark.messages import ChildSpec, Memory, MemoryReport, Subject
from tasks.machine import available_cores

_CALLS = 3


def run(spec_json: str) -> MemoryReport:
    """Measure each subject of a `ChildSpec` alone; the traceback of one that fails goes to standard error."""
    spec = ChildSpec.model_validate_json(spec_json)
    torch.set_num_threads(spec.threads)
    for module in spec.modules:
        importlib.import_module(module)
    # Else the children's collectors would touch, and so copy, every object of this process.
    gc.freeze()
    # As many at once as there are processors: time is not measured here, and each child counts its own pages only.
    abreast = available_cores()
    found: dict[str, Memory | str] = {}
    for first in range(0, len(spec.subjects), abreast):
        started = [(subject.name, *_start(subject, spec)) for subject in spec.subjects[first : first + abreast]]
        found |= {name: _answer(child, reader) for name, child, reader in started}
    return MemoryReport(
        memory={name: memory for name, memory in found.items() if isinstance(memory, Memory)},
        refused={name: reason for name, reason in found.items() if isinstance(reason, str)},
    )


def _start(subject: Subject, spec: ChildSpec) -> tuple[ForkProcess, Connection]:
    context = get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_measure_and_send, args=(subject, spec, writer))
    child.start()
    writer.close()
    return child, reader


def _answer(child: ForkProcess, reader: Connection) -> Memory | str:
    """What a child measured, or why it could not."""
    try:
        answer: Memory | str = reader.recv()
    except EOFError:
        child.join()
        return f"its process ended with exit code {child.exitcode}"
    child.join()
    return answer


def _measure_and_send(subject: Subject, spec: ChildSpec, writer: Connection) -> None:
    try:
        writer.send(_measure(subject, spec))
    except Exception as error:
        writer.send(f"{type(error).__name__}: {error}")
        raise


def _measure(subject: Subject, spec: ChildSpec) -> Memory:
    before = psutil.Process().memory_info().rss
    with torch.inference_mode():
        loaded = loader_named(spec.loader)(subject)
        after = psutil.Process().memory_info().rss
        with loaded.scope():
            for _ in range(_CALLS):
                loaded.call()
    return Memory(rss_loaded_bytes=max(0, after - before), peak_rss_bytes=max(0, _peak_bytes() - before))


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""Measure each subject's peak memory in a forked process, whose growth comes from the subject's model alone."""

from __future__ import annotations

import gc
import importlib
import resource
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pkgutil import resolve_name

import psutil
import torch

from tasks.benchmark.child import describe_end
from tasks.benchmark.messages import ChildSpec, Memory, MemoryReport, Subject
from tasks.machine import available_cores

_CALLS = 3


def run(spec_json: str) -> MemoryReport:
    """Measure each subject of a `ChildSpec` separately; write the traceback of a failure to standard error."""
    spec = ChildSpec.model_validate_json(spec_json)
    torch.set_num_threads(spec.threads)
    for module in (*spec.modules, spec.loader.partition(":")[0]):
        importlib.import_module(module)
    # Without `gc.freeze`, garbage collection in a child would touch, and therefore copy, every object of this process.
    gc.freeze()
    # Children can run in parallel, because each child counts only its own pages. Leave processors free for the proof.
    parallel = max(1, available_cores() - spec.threads)
    context, results = get_context("fork"), dict[str, Memory | str]()
    for first in range(0, len(spec.subjects), parallel):
        started: dict[str, tuple[ForkProcess, Connection]] = {}
        for subject in spec.subjects[first : first + parallel]:
            reader, writer = context.Pipe(duplex=False)
            child = context.Process(target=_measure, args=(subject, spec, writer))
            child.start()
            writer.close()
            started[subject.name] = child, reader
        for name, (child, reader) in started.items():
            try:
                results[name] = reader.recv()
                child.join()
            except (EOFError, OSError):  # the child died before its report was complete
                child.join()
                results[name] = f"The candidate's memory process {describe_end(child.exitcode or 0)}"
    return MemoryReport(
        memory={name: memory for name, memory in results.items() if isinstance(memory, Memory)},
        refused={name: reason for name, reason in results.items() if isinstance(reason, str)},
    )


def _measure(subject: Subject, spec: ChildSpec, writer: Connection) -> None:
    try:
        before = psutil.Process().memory_info().rss
        with torch.inference_mode():
            loaded = resolve_name(spec.loader)(subject)
            after = psutil.Process().memory_info().rss
            with loaded.scope():
                for _ in range(_CALLS):
                    loaded.call()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        writer.send(Memory(rss_loaded_bytes=max(0, after - before), peak_rss_bytes=max(0, peak - before)))
    except Exception as error:
        writer.send(f"{type(error).__name__}: {error}")
        raise

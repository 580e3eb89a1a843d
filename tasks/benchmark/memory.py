"""Peak memory: every subject alone in a process that has loaded no model before.

`tasks.benchmark.child` runs it. This process imports the libraries, computes nothing, and forks one child per subject,
so that what a child's resident memory grows by is the model and its working memory, not imports. A forked child's
high-water mark starts at its own resident memory (Linux ``fork``), so no reset is needed.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import sys
from pathlib import Path

import psutil
import torch

from tasks.benchmark.launch import resolve_loader
from tasks.benchmark.messages import Memory, MemoryReport, MemorySpec, Subject, write_message


def measure_memory(spec: MemorySpec) -> MemoryReport:
    """Fork a child for each subject."""
    torch.set_num_threads(spec.threads)
    for module in spec.modules:
        importlib.import_module(module)
    # Else the children's collectors would touch, and so copy, every object of this process.
    gc.freeze()
    # As many at once as there are processors: time is not measured here, and each child counts its own pages only.
    abreast = os.cpu_count() or 1
    found: dict[str, Memory | None] = {}
    for first in range(0, len(spec.subjects), abreast):
        started = [(subject.name, *_start(subject, spec)) for subject in spec.subjects[first : first + abreast]]
        found |= {name: _answer(child, reader) for name, child, reader in started}
    return MemoryReport(memory={name: memory for name, memory in found.items() if memory is not None})


def _start(subject: Subject, spec: MemorySpec) -> tuple[int, int]:
    """Fork a child that measures one subject; give its process id and the pipe that its answer comes through."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, the child must not go on with the parent's work; its traceback is in the log.
        try:
            os.write(writer, _measure(subject, spec).model_dump_json().encode())
        finally:
            os._exit(0)
    os.close(writer)
    return child, reader


def _answer(child: int, reader: int) -> Memory | None:
    """What a child measured; None where it died."""
    with os.fdopen(reader) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return Memory.model_validate_json(answer) if answer else None


def _measure(subject: Subject, spec: MemorySpec) -> Memory:
    before = psutil.Process().memory_info().rss
    with torch.inference_mode():
        loaded = resolve_loader(spec.loader)(subject)
        after = psutil.Process().memory_info().rss
        with loaded.scope():
            for _ in range(spec.calls):
                loaded.call()
    return Memory(rss_loaded_bytes=max(0, after - before), peak_rss_bytes=max(0, _peak_bytes() - before))


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main(spec_path: str, out_path: str) -> None:
    """Measure what the file `spec_path` lists and write the report to `out_path`."""
    spec = MemorySpec.model_validate_json(Path(spec_path).read_text(encoding="utf-8"))
    write_message(measure_memory(spec), Path(out_path))

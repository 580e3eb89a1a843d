"""Open and profile ExecuTorch programs.

Only the C++ bindings are imported, because ``executorch.runtime`` also imports the exporter, which takes seconds.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock, local
from typing import Any

import torch
from executorch.extension.pybindings import _C
from torch import Tensor

from storage.errors import MeasurementError
from tasks.environment.libraries import contained
from tasks.runtimes.base import CandidateFiles, Opened, Opener
from tasks.values.proofs import Arithmetic, Operator

MODEL = "model.pte"
_KERNEL = re.compile(r"(.*?)(?: #(\d+))?$")  # XNNPACK numbers the kernels of a kind within a delegate
# XNNPACK names the types of kernels with weights: QC8 for static, and QDU8 for dynamic int8. Other kernels may have names
# without a type, and then it is unknown whether they compute in int8.
_INT8, _FLOAT = re.compile(r"\bQ(?:[SCUP]|DU?)8\b"), re.compile(r"\b[FB]F?(?:16|32)")
_CONVERT = re.compile(r"^Convert|quantize")
_PORTABLE = "native_call_"  # prefix of the events that time a portable kernel
_COPIES = re.compile(r"_copy\b|embedding|\bcat\b")


class ExecuTorchOpener(Opener):
    """An opener for programs."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the program; its kernels share one pool of `threads` threads, which belongs to the process."""
        return Opened(open_program(files.folder / MODEL, threads, files.made().notes))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Read ExecuTorch's event trace: the kernels of XNNPACK, and the portable kernels of the other nodes."""
        with tempfile.TemporaryDirectory() as folder, contained():
            program = _C._load_program(str(files.folder / MODEL), enable_etdump=True)
            method = program.load_method("forward")
            arguments = [tensor.contiguous() for tensor in inputs]
            for _ in range(calls):
                method(arguments)
            trace = Path(folder, "trace.etdp")
            program.write_etdump_result_to_file(str(trace), "")
            return list(_operators(trace.read_bytes(), calls))


def open_program(path: Path, threads: int, notes: Sequence[str] = ()) -> Callable[..., tuple[Tensor, ...]]:
    """Load a program for calls by several threads; `notes` are repeated if a call has unsuitable shapes."""
    with contained():  # the library prints its decisions about threads
        if _C._threadpool_get_thread_count() != threads:
            _C._unsafe_reset_threadpool(threads)
        methods = _Methods(_C._load_program(str(path)))

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        # ExecuTorch reads tensors in the channels-last memory format as if they were contiguous.
        arguments = [tensor.contiguous() for tensor in inputs]
        try:
            return tuple(methods.mine(arguments))
        except RuntimeError as error:
            shapes, largest = [list(tensor.shape) for tensor in arguments], methods.largest()
            if shapes == largest:
                raise
            raise MeasurementError(
                f"ExecuTorch refuses inputs of the shapes {shapes}: the program takes at most {largest}"
                f"{''.join(f'; {note}' for note in notes)}.",
                hint="Use shapes within these bounds, or another runtime.",
            ) from error

    return call


class _Methods(local):
    """A loaded method for each thread, because simultaneous calls of one method would share its buffers."""

    loading = Lock()

    def __init__(self, program: Any) -> None:
        with self.loading:
            self.mine = program.load_method("forward")

    def largest(self) -> list[list[int]]:
        """Return the inputs' shapes, with the largest length of each dynamic axis."""
        meta = self.mine.method_meta()
        return [list(meta.input_tensor_meta(index).sizes()) for index in range(meta.num_inputs())]


def _operators(trace: bytes, calls: int) -> Iterator[Operator]:
    """Yield the average time of each kernel; the events of XNNPACK's kernels have a resolution of a microsecond."""
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    seconds: defaultdict[tuple[str, str, Arithmetic], float] = defaultdict(float)
    runs = deserialize_from_etdump_flatcc(trace).run_data
    for event in (event.profile_event for run in runs for event in run.events or ()):
        if event is None:
            continue
        kernel, name = event.delegate_debug_id_str or "", event.name or ""
        if kernel and (match := _KERNEL.match(kernel)):
            key = f"delegate_{event.instruction_id}_{match[2]}", f"XNNPACK {match[1]}", _arithmetic(match[1])
        elif name.startswith(_PORTABLE):
            kind = name.removeprefix(_PORTABLE)
            arithmetic: Arithmetic = "other" if _COPIES.search(kind) else "float"
            key = f"operator_{event.instruction_id}", f"portable {kind}", arithmetic
        else:  # events that enclose other events
            continue
        seconds[key] += (event.end_time - event.start_time) / 1e9 / calls
    for (name, kind, arithmetic), spent in seconds.items():
        yield Operator(name=name, type=kind, arithmetic=arithmetic, seconds=spent)


def _arithmetic(kernel: str) -> Arithmetic:
    if _CONVERT.search(kernel):
        return "convert"
    return "int8" if _INT8.search(kernel) else "float" if _FLOAT.search(kernel) else "other"

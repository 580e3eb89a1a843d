"""Open and profile ExecuTorch programs without ``executorch.runtime``, which imports the exporter and takes seconds."""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock, local
from typing import Any

import torch  # noqa: F401 - loads the libraries that the bindings need
from executorch.extension.pybindings import _C
from torch import Tensor

from storage.errors import MeasurementError
from tasks.environment.libraries import contained
from tasks.runtimes.base import CandidateFiles, Opened, Opener
from tasks.values.proofs import Arithmetic, Operator

MODEL = "model.pte"
LENGTHS = "lengths"  # name of the method that returns the lengths of the inputs' axes, and 0 for dynamic lengths
# ExecuTorch plans memory for the largest length of an axis. An axis without a bound could be as long as the example.
LARGEST = 256
_KERNEL = re.compile(r"(.+?)(?: #(\d+))?$")  # XNNPACK numbers the kernels of a kind within a delegate
# XNNPACK names the type of a kernel with weights: QC8 for static, and QDU8 for dynamic int8. If another kernel's
# name lacks the type, it is unknown whether the kernel computes in int8.
_INT8, _FLOAT = re.compile(r"\bQ(?:[SCUP]|DU?)8\b"), re.compile(r"\b[FB]F?(?:16|32)")
_CONVERT = re.compile(r"^Convert|quantize")
_LOADING = Lock()
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
        program = _C._load_program(str(path))
        methods = _Methods(program)
        lengths = program.load_method(LENGTHS)(())[0].tolist()
    # If one axis of an input is dynamic, ExecuTorch checks the number of elements, but not the lengths of other axes.
    fixed = [(index, axis, (length,)) for index, row in enumerate(lengths) for axis, length in enumerate(row) if length]

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        cause: RuntimeError | None = None
        if all(inputs[index].shape[axis : axis + 1] == length for index, axis, length in fixed):
            try:
                # ExecuTorch reads tensors in the channels-last memory format as if they were contiguous.
                return tuple(methods.mine([tensor.contiguous() for tensor in inputs]))
            except RuntimeError as error:
                cause = error
        shapes = [list(tensor.shape) for tensor in inputs]
        taken = [[length or "any" for length in row[: len(shape)]] for row, shape in zip(lengths, shapes, strict=True)]
        raise MeasurementError(
            f"the ExecuTorch program takes inputs of the shapes {taken}, but not {shapes}"
            f"{f': {cause}' if cause else ''}{''.join(f'; {note}' for note in notes)}.",
            hint=f"Evaluate and benchmark the same lengths, with at most {LARGEST} rows, or use another runtime.",
        ) from cause

    return call


class _Methods(local):
    """A loaded method for each thread, because simultaneous calls of one method would share its buffers."""

    def __init__(self, program: Any) -> None:
        with _LOADING:
            self.mine = program.load_method("forward")


def _operators(trace: bytes, calls: int) -> Iterator[Operator]:
    """Yield the average time of each kernel; the events of XNNPACK's kernels have a resolution of a microsecond."""
    from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

    seconds: defaultdict[tuple[str, str, Arithmetic], float] = defaultdict(float)
    runs = deserialize_from_etdump_flatcc(trace).run_data
    for event in (event.profile_event for run in runs for event in run.events or ()):
        name = (event and event.name) or ""
        if event and (match := _KERNEL.match(event.delegate_debug_id_str or "")):
            key = f"delegate_{event.instruction_id}_{match[2]}", f"XNNPACK {match[1]}", _arithmetic(match[1])
        elif event and name.startswith(_PORTABLE):
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

"""Open and profile converted torch modules; for comparison, open the modules with exact arithmetic.

torch's profiler does not see a compiled package's calls to oneDNN, so oneDNN's profiler is used as well.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from tasks.data.outputs import Call
from tasks.quantize.converted import KIND, open_converted
from tasks.quantize.engine import quantized_engine, running
from tasks.quantize.operators import portable_kernels
from tasks.runtimes.base import CandidateFiles, Opened, Opener
from tasks.values.proofs import Arithmetic, Operator, typical

_EXACT = "qnnpack"
_INT8 = re.compile(r"quantized::|aten::quantized_|onednn::q|nightquant_\w+::")
_CONVERT = re.compile(r"aten::(?:quantize_per|dequantize|_choose_qparams|choose_qparams)|quantized_decomposed::")
# `_OTHER` matches operators that inspect or allocate tensors, or that return views. An operator that does not match
# `_INT8`, `_CONVERT` or `_OTHER` computes in float.
_OTHER = re.compile(
    r"forward$|aten::(?:_?empty|view|select|narrow|as_strided|slice|unbind|reshape|_reshape|to$|item|_local_scalar|"
    r"detach|transpose|t$|expand|permute|squeeze|unsqueeze|chunk|split|q_|qscheme|alias|result_type|resolve)"
)
# torch's profiler takes 0.2 ms per operator, and a recurrent model has hundreds of operators per call.
_PARTS, _MOST_IN_PART = 5, 4
_PACKAGE = "AOTIModelContainerRunner"  # name prefix of the events that time complete calls of a package


class EagerOpener(Opener):
    """An opener for the converted module; subclasses open files instead."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the module, with weights packed for the spec's engine."""
        scope = partial(running, files.spec())
        torch.set_num_threads(threads)
        with scope():
            return Opened(self.load(files), scope)

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Profile the calls with torch's profiler."""
        with opened.scope():
            return profile_torch(partial(opened.call, *inputs), calls)

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Open the converted module with kernels that accumulate products in 32 bits on every processor."""
        if files.spec().operators == "own":
            return Opened(self.open(files, threads).call, portable_kernels)
        if files.spec().engine is None or _EXACT not in torch.backends.quantized.supported_engines:
            return None
        scope = partial(quantized_engine, _EXACT)
        with scope():
            return Opened(open_converted(files.shared[KIND]), scope)

    def load(self, files: CandidateFiles) -> Call:
        """Load the model as a callable; the quantized engine is already set."""
        return open_converted(files.shared[KIND])


def profile_torch(call: Callable[[], object], calls: int) -> list[Operator]:
    """Profile the operators in up to 20 calls, including the oneDNN primitives of a compiled package."""
    parts = min(_PARTS, calls)
    calls_in_part = min(_MOST_IN_PART, calls // parts)
    return typical(operator for _ in range(parts) for operator in _profile_part(call, calls_in_part))


def _profile_part(call: Callable[[], object], calls: int) -> list[Operator]:
    # ``torch.profiler.profile`` would import torch's compiler, which takes seconds.
    with profile() as profiler:
        for _ in range(calls):
            call()
    seconds = {event.key: event.self_cpu_time_total / 1e6 for event in profiler.key_averages()}
    package_s = sum(spent for name, spent in seconds.items() if name.startswith(_PACKAGE))
    operators = [
        Operator(type=name, arithmetic=_arithmetic(name), seconds=spent)
        for name, spent in seconds.items()
        if not name.startswith(_PACKAGE)
    ]
    if package_s:
        primitives = _profile_onednn(call, calls)
        rest_s = max(0.0, package_s - sum(primitive.seconds for primitive in primitives))
        operators += [*primitives, Operator(type="compiled loops", arithmetic="float", seconds=rest_s)]
    return operators


def _arithmetic(name: str) -> Arithmetic:
    if _CONVERT.match(name):
        return "convert"
    return "int8" if _INT8.match(name) else "other" if _OTHER.match(name) else "float"


def _profile_onednn(call: Callable[[], object], calls: int) -> list[Operator]:
    """Read each primitive's type, implementation, tensors and duration from oneDNN's log on standard output."""
    with tempfile.TemporaryFile() as file:
        onednn = torch.backends.mkldnn
        with _standard_output_to(file.fileno()), onednn.verbose(onednn.VERBOSE_ON):  # type: ignore[no-untyped-call]
            for _ in range(calls):
                call()
        file.seek(0)
        lines = file.read().decode("utf-8", "replace").splitlines()
    seconds: defaultdict[tuple[str, Arithmetic], float] = defaultdict(float)
    for primitive in filter(None, map(_primitive, lines)):
        seconds[primitive.type, primitive.arithmetic] += primitive.seconds
    return [Operator(type=kind, arithmetic=arithmetic, seconds=spent) for (kind, arithmetic), spent in seconds.items()]


def _primitive(line: str) -> Operator | None:
    # onednn_verbose,v1,primitive,exec,cpu,convolution,brgconv:avx512_core_amx,forward,src:u8::... wei:s8::...,...,0.03
    fields = line.split(",")
    if len(fields) < 10 or fields[0] != "onednn_verbose" or fields[3] != "exec":
        return None
    kind, implementation, tensors = fields[5], fields[6], fields[8]
    if kind == "reorder":
        arithmetic: Arithmetic = "convert"
    else:
        arithmetic = "int8" if re.search(r"\bwei(?:_layer)?:[su]8", tensors) else "float"
    return Operator(type=f"oneDNN {kind} ({implementation})", arithmetic=arithmetic, seconds=float(fields[-1]) / 1e3)


@contextmanager
def _standard_output_to(descriptor: int) -> Iterator[None]:
    """Redirect standard output, including output from C code, to a file."""
    library = ctypes.CDLL(None)
    sys.stdout.flush()
    library.fflush(None)
    original = os.dup(1)
    try:
        os.dup2(descriptor, 1)
        yield
    finally:
        library.fflush(None)
        os.dup2(original, 1)
        os.close(original)

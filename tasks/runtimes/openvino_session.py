"""OpenVINO's IR in OpenVINO: opened, profiled, and compared with exact arithmetic."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import openvino
import torch
from openvino import InferRequest, ProfilingInfo
from torch import Tensor

from tasks.outputs import tensors_of
from tasks.proofs import Arithmetic, Operator, typical
from tasks.runtimes.base import CandidateFiles, Opened, Opener

MODEL, WEIGHTS = "model.xml", "model.bin"
PRECISION = ["nightquant", "precision"]  # where the IR says what float operators compute in
_COMPRESSED = "FullyConnectedCompressed"  # with int8 weights, whose kernels are named after the output
_SHAPES = 4  # that stay compiled; an evaluation has a few, a benchmark one


class OpenVinoOpener(Opener):
    """Compiles an IR."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Compile, when a shape first comes, for that many threads, one stream, and the recipe's precision."""
        return Opened(open_ir(files.folder / MODEL, threads))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Read OpenVINO's performance counts: kernels' names say what they compute in (``brgconv_avx512_amx_I8``)."""
        path, shapes = files.folder / MODEL, [tuple(each.shape) for each in inputs]
        rounds = "dynamic-per-tensor" in files.spec().activations and _rounds_activations(opened, path, threads, inputs)
        request, _ = _compile(path, threads, shapes, PERF_COUNT=True)
        operators = []
        for _ in range(calls):
            request.infer([each.numpy() for each in inputs])
            operators += [
                Operator(
                    name=node.node_name,
                    type=f"{node.node_type} ({node.exec_type})",
                    arithmetic="int8" if rounds and node.node_type == _COMPRESSED else _arithmetic(node),
                    seconds=node.real_time.total_seconds(),
                )
                for node in request.profiling_info
            ]
        return typical(operators)

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Open the IR without low-precision transformations: it is float operators between rounding ones then.

        The setting is not documented: the plugin's own tests use it.
        """
        return Opened(open_ir(files.folder / MODEL, threads, LP_TRANSFORMS_MODE=False))


def _arithmetic(node: ProfilingInfo) -> Arithmetic:
    if node.node_type in ("Reorder", "Convert", "FakeQuantize"):
        return "convert"
    return "int8" if node.exec_type.lower().endswith(("_i8", "_u8")) else "float"


def _rounds_activations(opened: Opened, path: Path, threads: int, inputs: Sequence[Tensor]) -> bool:
    """Whether products with compressed weights round activations to int8 on this processor, which no count says.

    Told not to, they give other answers then.
    """
    plain = open_ir(path, threads, DYNAMIC_QUANTIZATION_GROUP_SIZE=0)
    return not all(map(torch.equal, tensors_of(opened(*inputs)), plain(*inputs)))


def open_ir(path: Path, threads: int, **more: object) -> Callable[..., tuple[Tensor, ...]]:
    """Compile for each shape of the inputs that comes: kernels for lengths that are known are faster by a fifth."""

    @lru_cache(maxsize=_SHAPES)
    def compiled_for(*shapes: tuple[int, ...]) -> tuple[InferRequest, range]:
        return _compile(path, threads, shapes, **more)

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        request, outputs = compiled_for(*(tuple(tensor.shape) for tensor in inputs))
        # Handed to `infer` itself, they would cost as much again as a small operator: it looks at types and names.
        arrays = [tensor.contiguous().numpy() for tensor in inputs]
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
        request.infer(share_outputs=True)
        return tuple(torch.from_numpy(request.get_output_tensor(index).data.copy()) for index in outputs)

    return call


def _compile(path: Path, threads: int, shapes: Sequence[tuple[int, ...]], **more: object) -> tuple[InferRequest, range]:
    """A request for inputs of these shapes, and the numbers of its outputs."""
    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({entry: list(shape) for entry, shape in zip(model.inputs, shapes, strict=True)})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the process is pinned already
        "INFERENCE_PRECISION_HINT": model.get_rt_info(PRECISION).astype(str),
    }
    with signal_stack_kept():
        compiled = core.compile_model(model, "CPU", settings | more)
    return compiled.create_infer_request(), range(len(compiled.outputs))


class _Stack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Put back the calling thread's alternate signal stack after the block, so that nothing is freed under it.

    Loaded, OpenVINO's CPU plugin replaces the stack on which Python's signal handlers run; unloaded, it puts back the
    one that it found. Of two that overlap, the second puts back the first one's, which is freed by then: the next
    signal that Python handles ends the process with SIGSEGV. So a stage worker that had opened OpenVINO models could
    not be ended by SIGTERM. Seen in OpenVINO 2026.4.
    """
    libc = ctypes.CDLL(None)
    before = _Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)

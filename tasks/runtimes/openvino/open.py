"""Open and profile OpenVINO IR; for comparison, also open the IR with exact arithmetic."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, local
from typing import TypeAlias

import openvino
import torch
from openvino import CompiledModel, InferRequest, ProfilingInfo
from torch import Tensor

from tasks.data.outputs import tensors_of
from tasks.runtimes.base import CandidateFiles, Opened, Opener
from tasks.values.proofs import Arithmetic, Operator, typical

MODEL, WEIGHTS = "model.xml", "model.bin"
PRECISION = ["nightquant", "precision"]  # path of the IR entry that sets the precision of float operators
DIGEST = ["nightquant", "weights_sha256"]  # path of the IR entry that contains the digest of the weights
_COMPRESSED = "FullyConnectedCompressed"  # kernels are named after the output's type, even if weights are int8
# Number of input shapes to compile; benchmarks use one. Further shapes, such as those of texts of many lengths, share
# one model with dynamic shapes, because compiling a shape takes as long as about a hundred calls.
_SHAPES = 4

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


class OpenVinoOpener(Opener):
    """An opener that compiles an IR."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Compile the model for each new input shape, with `threads` threads, one stream and the recipe's precision."""
        return Opened(open_ir(files.folder / MODEL, threads))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Read OpenVINO's performance counts; kernel names show the precision (``brgconv_avx512_amx_I8``)."""
        path, shapes = files.folder / MODEL, [tuple(tensor.shape) for tensor in inputs]
        rounds = "dynamic-per-tensor" in files.spec().activations and _rounds_activations(opened, path, threads, inputs)
        request = _compile(path, threads, shapes, PERF_COUNT=True).create_infer_request()
        operators = []
        for _ in range(calls):
            request.infer([tensor.numpy() for tensor in inputs])
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
        """Open the IR without low-precision transformations, so that float operators compute on rounded values."""
        return Opened(open_ir(files.folder / MODEL, threads, LP_TRANSFORMS_MODE=False))


def _arithmetic(node: ProfilingInfo) -> Arithmetic:
    if node.node_type in ("Reorder", "Convert", "FakeQuantize"):
        return "convert"
    return "int8" if node.exec_type.lower().endswith(("_i8", "_u8")) else "float"


def _rounds_activations(opened: Opened, path: Path, threads: int, inputs: Sequence[Tensor]) -> bool:
    """Return whether layers with compressed weights round activations: the outputs change if rounding is turned off."""
    plain = open_ir(path, threads, DYNAMIC_QUANTIZATION_GROUP_SIZE=0)
    return not all(map(torch.equal, tensors_of(opened(*inputs)), plain(*inputs)))


class _Requests(local):
    """An inference request of the compiled model for each thread, because a request can serve only one call."""

    def __init__(self, compiled: CompiledModel) -> None:
        self.mine: InferRequest = compiled.create_infer_request()
        self.outputs = range(len(compiled.outputs))


def open_ir(path: Path, threads: int, **more: object) -> Callable[..., tuple[Tensor, ...]]:
    """Open an IR for calls by several threads, compiled for the first input shapes: fixed shapes are a fifth faster."""
    compiling = Lock()
    compiled: dict[Shapes | None, _Requests] = {}

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        shapes: Shapes | None = tuple(tuple(tensor.shape) for tensor in inputs)
        with compiling:  # otherwise, threads that need the same new shape would all compile the model
            if shapes not in compiled and len(compiled) >= _SHAPES:
                shapes = None
            if shapes not in compiled:
                compiled[shapes] = _Requests(_compile(path, threads, shapes, **more))
        requests = compiled[shapes]
        request = requests.mine
        # Do not pass the arrays to `infer`, whose type and name checks take as long as a small operator.
        arrays = [tensor.contiguous().numpy() for tensor in inputs]
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
        request.infer(share_outputs=True)
        return tuple(torch.from_numpy(request.get_output_tensor(index).data.copy()) for index in requests.outputs)

    return call


def _compile(path: Path, threads: int, shapes: Sequence[tuple[int, ...]] | None, **more: object) -> CompiledModel:
    """Compile an IR for inputs with the given shapes, or for the IR's own dynamic shapes."""
    core = openvino.Core()
    model = core.read_model(path)
    if shapes is not None:
        model.reshape({entry: list(shape) for entry, shape in zip(model.inputs, shapes, strict=True)})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the process is already pinned to cores
        "INFERENCE_PRECISION_HINT": model.get_rt_info(PRECISION).astype(str),
    }
    with signal_stack_kept():
        return core.compile_model(model, "CPU", settings | more)


class _Stack(ctypes.Structure):
    """Linux's structure ``stack_t``."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Restore the calling thread's alternate signal stack after the block.

    OpenVINO's CPU plugin replaces the stack on which Python's signal handlers run, and restores the previous stack when
    it is unloaded. If the lifetimes of two plugins overlap in OpenVINO 2026.4, the restored stack has been freed, and
    the next signal kills the process with SIGSEGV.
    """
    libc = ctypes.CDLL(None)
    before = _Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)

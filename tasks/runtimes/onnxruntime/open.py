"""Open and profile ONNX files in ONNX Runtime, and open them with exact arithmetic for comparison."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import onnxruntime
import torch
from onnxruntime import InferenceSession, SessionOptions
from torch import Tensor

from storage.digest import JsonObject
from tasks.runtimes.base import CandidateFiles, Opened, Opener
from tasks.values.proofs import Arithmetic, Operator, typical

MODEL = "model.onnx"
# ``WeightBiasQuantization`` quantizes float weights between DequantizeLinear and QuantizeLinear nodes, even in excluded
# layers.
_DISABLED = ["WeightBiasQuantization"]
_KERNEL = "_kernel_time"  # name suffix of the profile events that time an operator's kernel


class OnnxOpener(Opener):
    """An opener for ONNX files."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Start a session with `threads` threads, which do not spin between calls."""
        return Opened(_call(_session(files, _options(threads))))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Read ONNX Runtime's profile, which contains the types of kernels and inputs."""
        options = _options(threads)
        options.enable_profiling = True
        with tempfile.TemporaryDirectory() as folder:
            options.profile_file_prefix = f"{folder}/profile"
            session = _session(files, options)
            call = _call(session)
            for _ in range(calls):
                call(*inputs)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return typical(_operator(event) for event in events if event.get("name", "").endswith(_KERNEL))

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Open the file in a session with unsigned weights; every processor then accumulates products in 32 bits."""
        options = _options(threads)
        options.add_session_config_entry("session.x64quantprecision", "1")
        return Opened(_call(_session(files, options)))


def _session(files: CandidateFiles, options: SessionOptions) -> InferenceSession:
    return onnxruntime.InferenceSession(
        str(files.folder / MODEL), options, providers=["CPUExecutionProvider"], disabled_optimizers=_DISABLED
    )


def _options(threads: int) -> SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that spin after a call would take processor time from the next timed model.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3  # errors
    return options


def _call(session: InferenceSession) -> Callable[..., tuple[Tensor, ...]]:
    names = [entry.name for entry in session.get_inputs()]

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        arrays = [tensor.numpy() for tensor in inputs]
        return tuple(map(torch.from_numpy, session.run(None, dict(zip(names, arrays, strict=True)))))

    return call


def _operator(event: JsonObject) -> Operator:
    kind, inputs = event["args"]["op_name"], event["args"].get("input_type_shape", [])
    if kind in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"):
        arithmetic: Arithmetic = "convert"
    else:
        dtypes = {dtype for entry in inputs for dtype in entry}
        arithmetic = "int8" if dtypes & {"int8", "uint8"} else "float"
    name = event["name"].removesuffix(_KERNEL)
    return Operator(name=name, type=kind, arithmetic=arithmetic, seconds=event["dur"] / 1e6)

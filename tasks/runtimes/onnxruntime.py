"""Runtime ``onnxruntime``: the float model exported to ONNX and quantized there, by ONNX Runtime's own tools."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storage.documents import JsonObject
from tasks.machine import this_machine
from tasks.runtimes import onnx_model
from tasks.runtimes.base import CandidateFiles, Checker, Made, Opened, RawCall, RawTensor, Runtime

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions
    from torch import Tensor

    from tasks.quantize.source import ModelSource
    from tasks.runtimes.operators import Arithmetic, Operator
    from tasks.workload.recipe import Recipe

MODEL = onnx_model.MODEL
_PROVIDERS = ["CPUExecutionProvider"]
# It gives a float weight between DequantizeLinear and QuantizeLinear a pair of its own, and so int8 to layers that a
# recipe excludes.
_DISABLED = ["WeightBiasQuantization"]
_KERNEL = "_kernel_time"  # what the names of a profile's events end with, of those that are an operator's own work


def load_onnx(files: dict[str, bytes], manifest: JsonObject) -> RawCall:
    """Open ``model.onnx`` with onnxruntime and numpy alone."""
    import numpy
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(
            files[manifest["model"]["file"]],
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["WeightBiasQuantization"],  # it quantizes what is to stay float
        )
    except Exception as error:
        made_with = manifest["versions"].get("onnxruntime")
        raise RuntimeError(
            f"onnxruntime {onnxruntime.__version__} cannot open the model, which was made with {made_with}: {error}"
        ) from error
    names = [entry.name for entry in session.get_inputs()]

    def call(inputs: list[RawTensor]) -> list[RawTensor]:
        arrays = [numpy.frombuffer(values, dtype).reshape(shape) for dtype, shape, values in inputs]
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        return [(str(output.dtype), list(output.shape), output.tobytes()) for output in outputs]

    return call


class OnnxRuntime(Runtime):
    """Exports once and quantizes by recipe; a recipe's engine and graph mode are torch's and have no say here."""

    extra = "onnxruntime"
    distributions = ("onnxruntime", *onnx_model.DISTRIBUTIONS)
    saturation_noticed = 1e-3  # the reference rounds at the same places
    usage = """\
import onnxruntime

session = onnxruntime.InferenceSession(
    "{{ m.model.file }}",
    providers=["CPUExecutionProvider"],
    disabled_optimizers=["WeightBiasQuantization"],  # it quantizes what is to stay float
)
inputs = [{{ m.model.inputs | map(attribute="name") | join(", ") }}]  # NumPy arrays
outputs = session.run(None, {entry.name: array for entry, array in zip(session.get_inputs(), inputs)})
"""

    def checker(self) -> Checker:
        """Open ``model.onnx`` with onnxruntime and numpy alone."""
        return load_onnx

    def obstacle(self, recipe: Recipe) -> str:
        """What its quantizer, or its kernels for processors, cannot do."""
        if recipe.method not in ("none", "dynamic", "static", "qat"):
            return f'it cannot carry out method "{recipe.method}"'
        if getattr(recipe, "dtype", "qint8") != "qint8" or getattr(recipe, "embedding_bits", None) == 4:
            return "its kernels know neither float16 nor 4-bit embeddings"
        return onnx_model.obstacle(recipe)

    def environment(self) -> dict[str, object]:
        """Versions, and whether activations need a bit of headroom on this processor."""
        return {**super().environment(), "vnni": this_machine().has_vnni}

    def shared(self, source: ModelSource, recipe: Recipe) -> dict[str, str]:
        """The exported float or fine-tuned model."""
        return {onnx_model.KIND: onnx_model.find_or_export(source, recipe).name}

    def make(self, source: ModelSource, recipe: Recipe, folder: Path) -> Made:
        """Quantize the exported model; the size is the file's."""
        from tasks.outputs import finite_outputs
        from tasks.quantize.coverage import cover, excluded_modules, leaves_of
        from tasks.quantize.engine import quiet
        from tasks.runtimes import onnx_quantize

        exported, target, model = (
            onnx_model.find_or_export(source, recipe) / MODEL,
            folder / MODEL,
            source.float_model(),
        )
        excluded = excluded_modules(model, recipe.exclude)
        with quiet():
            why_float = onnx_quantize.quantize(exported, target, recipe, excluded, source)
        finite_outputs(self.open(CandidateFiles(folder, {}), 1), source.example_inputs, recipe.name)
        return Made(size_bytes=target.stat().st_size, coverage=cover(leaves_of(model), why_float))

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Start a session of that many threads, which do not spin between calls."""
        return Opened(_call(_session(files, _options(threads))))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """By ONNX Runtime's profile, which has the kernels' types and those of their inputs."""
        from tasks.runtimes.operators import typical

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
        """The same with signed weights made unsigned, whose products it adds up in 32 bits on every processor."""
        options = _options(threads)
        options.add_session_config_entry("session.x64quantprecision", "1")
        return Opened(_call(_session(files, options)))


def _session(files: CandidateFiles, options: SessionOptions) -> InferenceSession:
    import onnxruntime

    return onnxruntime.InferenceSession(
        str(files.folder / MODEL), options, providers=_PROVIDERS, disabled_optimizers=_DISABLED
    )


def _options(threads: int) -> SessionOptions:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Threads that spin after a call take processor time from whatever is timed next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3  # errors
    return options


def _call(session: InferenceSession) -> Callable[..., tuple[Tensor, ...]]:
    names = [entry.name for entry in session.get_inputs()]

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        import torch

        arrays = [tensor.numpy() for tensor in inputs]
        return tuple(map(torch.from_numpy, session.run(None, dict(zip(names, arrays, strict=True)))))

    return call


def _operator(event: JsonObject) -> Operator:
    from tasks.runtimes.operators import Operator

    kind, inputs = event["args"]["op_name"], event["args"].get("input_type_shape", [])
    if kind in ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"):
        arithmetic: Arithmetic = "convert"
    else:
        dtypes = {dtype for each in inputs for dtype in each}
        arithmetic = "int8" if dtypes & {"int8", "uint8"} else "float"
    name = event["name"].removesuffix(_KERNEL)
    return Operator(name=name, type=kind, arithmetic=arithmetic, seconds=event["dur"] / 1e6)

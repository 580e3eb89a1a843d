"""Runtime ``onnxruntime``: the float model exported to ONNX and quantized there, by ONNX Runtime's own tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.digest import JsonObject
from tasks.quantize.spec import limit
from tasks.runtimes import exported
from tasks.runtimes.base import Checker, RawCall, RawTensor, Runtime

if TYPE_CHECKING:
    from tasks.runtimes.onnx_quantize import OnnxMaker
    from tasks.runtimes.onnx_session import OnnxOpener


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
    """Exports once and quantizes by spec; a recipe's engine and graph mode are torch's and have no say here."""

    extra = "onnxruntime"
    distributions = ("onnxruntime", *exported.DISTRIBUTIONS)
    limits = (
        exported.ACTIVATIONS,
        exported.FLOAT32,
        limit("weights", "int8", reason="its kernels know neither float16 nor 4-bit embeddings"),
        *exported.TORCHS_OWN,
    )
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

    def maker(self) -> OnnxMaker:
        """Import the exporter and the tools that quantize."""
        from tasks.runtimes.onnx_quantize import OnnxMaker

        return OnnxMaker()

    def opener(self) -> OnnxOpener:
        """Import ONNX Runtime."""
        from tasks.runtimes.onnx_session import OnnxOpener

        return OnnxOpener()

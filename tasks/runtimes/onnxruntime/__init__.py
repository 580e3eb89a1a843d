"""The ``onnxruntime`` runtime, and the specs that it supports."""

from __future__ import annotations

from tasks.quantize.spec import limit
from tasks.runtimes.base import EXPORTED_LIMITS, EXPORTING, OTHER_METHOD, Maker, Opener, Runtime


class OnnxRuntime(Runtime):
    """The exported ONNX file, quantized with ONNX Runtime's own tools."""

    extra = "onnxruntime"
    distributions = ("onnxruntime", *EXPORTING)
    limits = (
        *EXPORTED_LIMITS,
        limit("arithmetic", "float32", reason=OTHER_METHOD),
        limit("weights", "int8", reason="its kernels support neither float16 weights nor 4-bit embeddings"),
    )
    saturation_noticed = 1e-3  # the reference and the model round at the same points
    usage = """\
import onnxruntime

session = onnxruntime.InferenceSession(
    "{{ m.model.file }}",
    providers=["CPUExecutionProvider"],
    disabled_optimizers=["WeightBiasQuantization"],  # this optimizer quantizes layers that must stay float
)
inputs = [{{ m.model.inputs | map(attribute="name") | join(", ") }}]  # NumPy arrays
outputs = session.run(None, {entry.name: array for entry, array in zip(session.get_inputs(), inputs)})
"""

    def maker(self) -> Maker:
        """Import and create the maker."""
        from tasks.runtimes.onnxruntime.make import OnnxMaker

        return OnnxMaker()

    def opener(self) -> Opener:
        """Import and create the opener."""
        from tasks.runtimes.onnxruntime.open import OnnxOpener

        return OnnxOpener()

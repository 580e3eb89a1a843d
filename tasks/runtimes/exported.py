"""What runtimes that read an exported ONNX model have in common."""

from __future__ import annotations

from tasks.quantize.spec import limit

DISTRIBUTIONS = ("onnx", "onnxscript", "onnx-ir")  # what exporting takes
_OTHER_METHOD = 'it cannot carry out method "{recipe.method}"'
ACTIVATIONS = limit("activations", "float", "dynamic-per-tensor", "static", reason=_OTHER_METHOD)
FLOAT32 = limit("arithmetic", "float32", reason=_OTHER_METHOD)
_TORCHS_OWN = "memory formats and oneDNN are torch's own"
TORCHS_OWN = (
    limit("memory_format", "contiguous", reason=_TORCHS_OWN),
    limit("onednn", True, reason=_TORCHS_OWN),
)

"""What all runtimes that read ONNX files need and support; their tools ignore a recipe's engine."""

from __future__ import annotations

from tasks.quantize.spec import limit

EXPORTING = ("onnx", "onnxscript", "onnx-ir")  # distributions needed to export a model to ONNX
OTHER_METHOD = 'it does not support the "{method}" method'
_TORCHS_OWN = "it uses neither torch's memory formats nor torch's oneDNN kernels"
WITHOUT_TORCH = (limit("memory_format", "contiguous", reason=_TORCHS_OWN), limit("onednn", True, reason=_TORCHS_OWN))
LIMITS = (limit("activations", "float", "dynamic-per-tensor", "static", reason=OTHER_METHOD), *WITHOUT_TORCH)

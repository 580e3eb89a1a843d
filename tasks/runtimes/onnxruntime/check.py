"""Open a bundle's ``model.onnx`` with only onnxruntime and numpy."""

from collections.abc import Callable
from typing import Any

import numpy
import onnxruntime

Tensor = tuple[str, list[int], bytes]


def open_model(files: dict[str, bytes], manifest: dict[str, Any]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Start a session."""
    try:
        session = onnxruntime.InferenceSession(
            files[manifest["model"]["file"]],
            providers=["CPUExecutionProvider"],
            # ``WeightBiasQuantization`` also quantizes layers that must stay in float.
            disabled_optimizers=["WeightBiasQuantization"],
        )
    except Exception as error:
        made_with = manifest["versions"].get("onnxruntime")
        raise RuntimeError(
            f"onnxruntime {onnxruntime.__version__} cannot open the model ({error}); "
            f"install onnxruntime {made_with}, which built the model"
        ) from error
    names = [entry.name for entry in session.get_inputs()]

    def call(inputs: list[Tensor]) -> list[Tensor]:
        arrays = [numpy.frombuffer(values, dtype).reshape(shape) for dtype, shape, values in inputs]
        outputs = session.run(None, dict(zip(names, arrays, strict=True)))
        return [(str(output.dtype), list(output.shape), output.tobytes()) for output in outputs]

    return call

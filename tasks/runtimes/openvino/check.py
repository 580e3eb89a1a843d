"""Open a bundle's ``model.xml`` and ``model.bin`` with only openvino and numpy."""

from collections.abc import Callable
from typing import Any

import numpy
import openvino

Tensor = tuple[str, list[int], bytes]


def open_model(files: dict[str, bytes], manifest: dict[str, Any]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Compile the model."""
    core = openvino.Core()
    name = manifest["model"]["file"]
    model = core.read_model(files[name], openvino.Tensor(numpy.frombuffer(files[name[:-3] + "bin"], numpy.uint8)))
    precision = model.get_rt_info(["nightquant", "precision"]).astype(str)
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})

    def call(inputs: list[Tensor]) -> list[Tensor]:
        arrays = [numpy.frombuffer(values, dtype).reshape(shape) for dtype, shape, values in inputs]
        result = compiled(arrays)
        outputs = [numpy.ascontiguousarray(result[index]) for index in range(len(compiled.outputs))]
        return [(str(output.dtype), list(output.shape), output.tobytes()) for output in outputs]

    return call

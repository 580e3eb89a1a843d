"""Open a bundle's ``model.ts`` using only torch."""

import ctypes
import io
from collections.abc import Callable
from typing import Any

import torch

Tensor = tuple[str, list[int], bytes]


def open_model(files: dict[str, bytes], manifest: dict[str, Any]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Load the file."""
    if manifest["engine"] is not None:  # loading packs weights for the current engine
        torch.backends.quantized.engine = manifest["engine"]
    model = torch.jit.load(io.BytesIO(files[manifest["model"]["file"]]), "cpu")  # type: ignore[no-untyped-call]

    def call(inputs: list[Tensor]) -> list[Tensor]:
        tensors = [
            torch.frombuffer(bytearray(values), dtype=getattr(torch, dtype)).reshape(shape)
            for dtype, shape, values in inputs
        ]
        with torch.inference_mode():
            result = model(*tensors)
        outputs = [output.contiguous() for output in ([result] if torch.is_tensor(result) else result)]
        return [
            (str(output.dtype)[6:], list(output.shape), ctypes.string_at(output.data_ptr(), output.nbytes))
            for output in outputs
        ]

    return call

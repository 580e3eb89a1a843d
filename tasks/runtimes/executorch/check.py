"""Open a bundle's ``model.pte`` with only executorch and torch."""

import ctypes
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from executorch.extension.pybindings import _C

Tensor = tuple[str, list[int], bytes]


def open_model(files: dict[str, bytes], manifest: dict[str, Any]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Load the program."""
    content = files[manifest["model"]["file"]]
    try:
        program = _C._load_program_from_buffer(content)
        method = program.load_method("forward")
    except RuntimeError as error:
        made_with = manifest["versions"].get("executorch")
        raise RuntimeError(
            f"executorch {version('executorch')} cannot open the model ({error}); "
            f"install executorch {made_with}, which built the model"
        ) from error

    def call(inputs: list[Tensor]) -> list[Tensor]:
        assert len(content) and program  # the method refers to both, but keeps neither alive
        tensors = [
            torch.frombuffer(bytearray(values), dtype=getattr(torch, dtype)).reshape(shape)
            for dtype, shape, values in inputs
        ]
        outputs = [output.contiguous() for output in method(tensors)]
        return [
            (str(output.dtype)[6:], list(output.shape), ctypes.string_at(output.data_ptr(), output.nbytes))
            for output in outputs
        ]

    return call

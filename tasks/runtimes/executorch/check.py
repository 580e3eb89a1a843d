"""Open a bundle's ``model.pte`` with only executorch and torch."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from executorch.extension.pybindings import _C

Tensor = tuple[str, list[int], bytes]


def open_model(files: dict[str, bytes], manifest: dict[str, Any]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Load the program."""
    content = files[manifest["model"]["file"]]
    program = _C._load_program_from_buffer(content)
    kept = program.load_method("forward"), program, content  # the method does not keep the others alive

    def call(inputs: list[Tensor]) -> list[Tensor]:
        tensors = [
            torch.frombuffer(bytearray(values), dtype=getattr(torch, dtype)).reshape(shape)
            for dtype, shape, values in inputs
        ]
        outputs = [output.contiguous() for output in kept[0](tensors)]
        return [
            (str(output.dtype)[6:], list(output.shape), ctypes.string_at(output.data_ptr(), output.nbytes))
            for output in outputs
        ]

    return call

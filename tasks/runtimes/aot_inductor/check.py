"""Open a bundle's ``model.pt2`` and operator library with the torch version that compiled the model."""

import ctypes
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch._inductor import codecache

Tensor = tuple[str, list[int], bytes]


def open_model(files: dict[str, bytes], manifest: dict[str, Any]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Load the package."""
    if version("torch") != manifest["versions"]["torch"]:
        raise RuntimeError(
            f"the model needs torch {manifest['versions']['torch']}, but {version('torch')} is installed; "
            f"install torch {manifest['versions']['torch']}"
        )
    supported = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    missing = [name for name in manifest["required_isa"]["instructions"] if name not in supported]
    if missing:
        raise RuntimeError(
            f"this processor lacks instructions that the model needs ({', '.join(missing)}); "
            "use a host whose processor has these instructions"
        )
    name, *libraries = manifest["model"]["files"]
    # torch loads the model and the libraries from files, so write the files to a folder that other users cannot change.
    with tempfile.TemporaryDirectory() as folder:
        for file in (name, *libraries):
            Path(folder, file).write_bytes(files[file])
        for library in libraries:
            torch.ops.load_library(Path(folder, library))  # type: ignore[no-untyped-call]
        # Replace torch's check of the processor, which would run a compiler in a shared folder.
        codecache.get_device_information = lambda device_type: {}
        model = torch._inductor.aoti_load_package(str(Path(folder, name)))

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

"""Runtime ``torchscript``: traced with the example inputs, frozen, and loadable where this project is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from storage.digest import JsonObject
from tasks.quantize.spec import limit
from tasks.runtimes.base import Checker, RawCall, RawTensor, Runtime

if TYPE_CHECKING:
    from tasks.runtimes.torchscript_files import ScriptMaker, ScriptOpener


def load_torchscript(files: dict[str, bytes], manifest: JsonObject) -> RawCall:
    """Open ``model.ts`` with torch alone."""
    import ctypes
    import io

    import torch

    if manifest["engine"] is not None:  # weights are packed for it on loading
        torch.backends.quantized.engine = manifest["engine"]
    model = torch.jit.load(io.BytesIO(files[manifest["model"]["file"]]), "cpu")  # type: ignore[no-untyped-call]

    def call(inputs: list[RawTensor]) -> list[RawTensor]:
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


class TorchScript(Runtime):
    """Traces the converted module, which it shares."""

    distributions = ("torch",)
    runs_engine = True
    limits = (
        limit(
            "operators",
            "torch",
            reason="a TorchScript file cannot hold the library of operators that the recipe's modules call",
        ),
        limit("onednn", True, reason="a TorchScript file cannot switch oneDNN off"),
    )
    caution = "A TorchScript file is a program."
    usage = """\
import torch
{% if m.engine %}
torch.backends.quantized.engine = "{{ m.engine }}"
{% endif %}
model = torch.jit.load("{{ m.model.file }}", map_location="cpu")
with torch.inference_mode():
    outputs = model({{ m.model.inputs | map(attribute="name") | join(", ") }})
"""
    not_reproducible: ClassVar[dict[str, str]] = {
        "model.ts": "TorchScript numbers its types by what the process traced before and keeps source locations; the "
        "file is the very one that was measured, but making it anew gives other bytes"
    }

    def checker(self) -> Checker:
        """Open ``model.ts`` with torch alone."""
        return load_torchscript

    def maker(self) -> ScriptMaker:
        """Import what traces."""
        from tasks.runtimes.torchscript_files import ScriptMaker

        return ScriptMaker()

    def opener(self) -> ScriptOpener:
        """Import what opens files."""
        from tasks.runtimes.torchscript_files import ScriptOpener

        return ScriptOpener()

"""The ``torchscript`` runtime, and the specs that it supports."""

from __future__ import annotations

from typing import ClassVar

from tasks.quantize.spec import limit
from tasks.runtimes.base import Maker, Opener, Runtime


class TorchScript(Runtime):
    """The converted module, traced with the example inputs and frozen."""

    distributions = ("torch",)
    runs_engine = True
    limits = (
        limit(
            "operators",
            "torch",
            reason="a TorchScript file cannot contain the library of operators that the recipe's modules call",
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
        "model.ts": "TorchScript stores source locations, and numbers types by what the process traced before; this "
        "file was measured, but rebuilding the file gives different bytes"
    }

    def maker(self) -> Maker:
        """Import and create the maker."""
        from tasks.runtimes.torchscript.make import ScriptMaker

        return ScriptMaker()

    def opener(self) -> Opener:
        """Import and create the opener."""
        from tasks.runtimes.torchscript.open import ScriptOpener

        return ScriptOpener()

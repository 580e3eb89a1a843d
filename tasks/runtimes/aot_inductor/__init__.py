"""The ``aot-inductor`` runtime, and the specs that it supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tasks.quantize.spec import limit, spec_of
from tasks.runtimes.base import WITHOUT_GROUPS, Maker, Opener, Runtime

if TYPE_CHECKING:
    from tasks.workload.recipe import Recipe


class AotInductor(Runtime):
    """The exported model, optionally quantized by a method or by torchao's PT2E, and compiled ahead of time.

    This runtime uses neither TorchScript nor ``torch.ao.quantization``, because PyTorch has deprecated both.
    """

    extra = "inductor"
    main_file = "model.pt2"
    limits = (
        limit("onednn", True, reason="a compiled package cannot switch oneDNN off"),
        WITHOUT_GROUPS,
        limit(
            "form",
            "ordinary",
            "graph",
            reason='it does not support the "{method}" method; use torchscript or onnxruntime',
        ),
        limit(
            "granularities",
            "channel",
            reason='its int8 kernels need per-channel weights: use weights = "per-channel"',
        ),
        limit(
            "engine", None, "x86", "onednn", reason='its int8 kernels come from oneDNN, not from the "{engine}" engine'
        ),
    )
    compiles = True
    distributions = ("torch", "torchao")
    caution = "A compiled package is a program for one version of torch and one kind of processor."
    usage = """\
import os

import torch

# Compiled for torch {{ m.versions.torch }} on {{ m.required_isa.architecture }} with
# {{ m.required_isa.instructions | join(", ") }}.
{% for library in m.model.files[1:] %}
torch.ops.load_library("{{ library }}")
{% endfor %}
# While loading, torch runs the C++ compiler if installed, by default in a folder that other users can write to.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.expanduser("~/.cache/inductor"))
model = torch._inductor.aoti_load_package("{{ m.model.file }}")
with torch.inference_mode():
    # This is faster than model(...), which parses descriptions of inputs and outputs in every call.
    outputs = model.loader.run([{{ m.model.inputs | map(attribute="name") | join(", ") }}])
"""
    not_reproducible: ClassVar[dict[str, str]] = {
        "model.pt2": "a package contains output of the C++ compiler with random folder names; this file was measured, "
        "but rebuilding the file gives different bytes"
    }

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """Return the instruction sets that the compiler may use, as named in ``/proc/cpuinfo``."""
        from tasks.runtimes.aot_inductor.make import instructions_for

        return instructions_for(spec_of(recipe))

    def maker(self) -> Maker:
        """Import and create the maker."""
        from tasks.runtimes.aot_inductor.make import AotMaker

        return AotMaker()

    def opener(self) -> Opener:
        """Import and create the opener."""
        from tasks.runtimes.aot_inductor.open import AotOpener

        return AotOpener()

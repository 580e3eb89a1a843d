"""The ``executorch`` runtime, and the specs that it supports."""

from __future__ import annotations

from tasks.quantize.spec import limit
from tasks.runtimes.base import OTHER_METHOD, WITHOUT_TORCH, Maker, Opener, Runtime

_PER_ROW = 'its dynamic kernels use one range per row: use the "dynamic-per-row" method'


class ExecuTorch(Runtime):
    """The exported model as an ExecuTorch program, quantized with torchao's PT2E and lowered to XNNPACK."""

    extra = "executorch"
    distributions = ("executorch", "torch", "torchao")
    architectures = ("x86_64", "aarch64")
    limits = (
        limit("weights", "int8", "int4", reason="its kernels for quantized layers need int8 weights"),
        limit("activations", "float", "static", "dynamic-per-row", reason=_PER_ROW),
        limit("arithmetic", "float32", reason=OTHER_METHOD),
        *WITHOUT_TORCH,
    )
    caution = (
        "ExecuTorch's Python package needs torch, but does not declare it. ExecuTorch also runs the file on Arm "
        "processors, but its speed was measured on x86-64."
    )
    usage = """\
# pip install torch=={{ m.versions.torch }} && pip install --no-deps executorch=={{ m.versions.executorch }}
import torch
from executorch.extension.pybindings import _C

_C._unsafe_reset_threadpool(1)  # by default, XNNPACK uses a thread for each processor
program = _C._load_program("{{ m.model.file }}")
method = program.load_method("forward")
# ExecuTorch does not check axes of fixed length: program.load_method("lengths")(()) returns the lengths, and 0 for
# axes that may vary. It also misreads tensors in the channels-last memory format.
inputs = [{{ m.model.inputs | map(attribute="name") | join(", ") }}]
outputs = method([tensor.contiguous() for tensor in inputs])
"""

    def maker(self) -> Maker:
        """Import and create the maker."""
        from tasks.runtimes.executorch.make import ExecuTorchMaker

        return ExecuTorchMaker()

    def opener(self) -> Opener:
        """Import and create the opener."""
        from tasks.runtimes.executorch.open import ExecuTorchOpener

        return ExecuTorchOpener()

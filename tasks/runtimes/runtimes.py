"""The runtimes: the limits of each runtime, and the import paths of its maker, opener and checker.

Runtimes that read ONNX files quantize the exported float model with their own tools, which ignore a recipe's engine.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar

from tasks.quantize.spec import limit, spec_of
from tasks.runtimes.base import Runtime

if TYPE_CHECKING:
    from tasks.workload.recipe import Recipe

EXPORTING = ("onnx", "onnxscript", "onnx-ir")  # distributions needed to export a model to ONNX
_OTHER_METHOD = 'it does not support the "{recipe.method}" method'
_TORCHS_OWN = "it uses neither torch's memory formats nor torch's oneDNN kernels"
_LIMITS = (
    limit("activations", "float", "dynamic-per-tensor", "static", reason=_OTHER_METHOD),
    limit("memory_format", "contiguous", reason=_TORCHS_OWN),
    limit("onednn", True, reason=_TORCHS_OWN),
)


class Eager(Runtime):
    """The converted module, which cannot run without nightquant, so the candidate is measured but never published."""

    makes = "tasks.runtimes.torch_modules:EagerMaker"
    opens = "tasks.runtimes.torch_modules:EagerOpener"
    distributions = ("torch",)
    runs_engine = True


class TorchScript(Runtime):
    """The converted module, traced with the example inputs and frozen."""

    makes = "tasks.runtimes.torchscript_files:ScriptMaker"
    opens = "tasks.runtimes.torchscript_files:ScriptOpener"
    checker = "tasks.runtimes.torchscript_checker"
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


class AotInductor(Runtime):
    """The exported model, optionally quantized by a method or by torchao's PT2E, and compiled ahead of time.

    This runtime uses neither TorchScript nor ``torch.ao.quantization``, because PyTorch has deprecated both.
    """

    makes = "tasks.runtimes.aot_compile:AotMaker"
    opens = "tasks.runtimes.aot_session:AotOpener"
    checker = "tasks.runtimes.aot_checker"
    extra = "inductor"
    main_file = "model.pt2"
    limits = (
        limit("onednn", True, reason="a compiled package cannot switch oneDNN off"),
        limit(
            "form",
            "ordinary",
            "graph",
            reason='it does not support the "{recipe.method}" method; use torchscript or onnxruntime',
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
        instructions: list[str] = resolve_name("tasks.runtimes.aot_compile:instructions_for")(spec_of(recipe))
        return instructions


class OnnxRuntime(Runtime):
    """The exported ONNX file, quantized with ONNX Runtime's own tools."""

    makes = "tasks.runtimes.onnx_quantize:OnnxMaker"
    opens = "tasks.runtimes.onnx_session:OnnxOpener"
    checker = "tasks.runtimes.onnx_checker"
    extra = "onnxruntime"
    distributions = ("onnxruntime", *EXPORTING)
    limits = (
        *_LIMITS,
        limit("arithmetic", "float32", reason=_OTHER_METHOD),
        limit("weights", "int8", reason="its kernels support neither float16 weights nor 4-bit embeddings"),
    )
    saturation_noticed = 1e-3  # the reference and the model round at the same points
    usage = """\
import onnxruntime

session = onnxruntime.InferenceSession(
    "{{ m.model.file }}",
    providers=["CPUExecutionProvider"],
    disabled_optimizers=["WeightBiasQuantization"],  # this optimizer quantizes layers that must stay float
)
inputs = [{{ m.model.inputs | map(attribute="name") | join(", ") }}]  # NumPy arrays
outputs = session.run(None, {entry.name: array for entry, array in zip(session.get_inputs(), inputs)})
"""


class OpenVino(Runtime):
    """The exported model as OpenVINO IR, quantized with NNCF.

    The precision is always set, because OpenVINO computes float models in bfloat16 by default on some processors.
    """

    makes = "tasks.runtimes.openvino_quantize:OpenVinoMaker"
    opens = "tasks.runtimes.openvino_session:OpenVinoOpener"
    checker = "tasks.runtimes.openvino_checker"
    extra = "openvino"
    main_file = "model.xml"
    distributions = ("openvino", "nncf", *EXPORTING)
    limits = (*_LIMITS, limit("weights", "int8", reason="it compresses weights only to int8"))
    usage = """\
import openvino

core = openvino.Core()
model = core.read_model("{{ m.model.file }}")
# Fixed shapes are faster; without this call, dynamic axes may have any length.
model.reshape({
{%- for tensor in m.model.inputs %}{{ loop.index0 }}: {{ tensor.shape }}{{ ", " if not loop.last }}{% endfor -%}
})
compiled = core.compile_model(model, "CPU", {
    "INFERENCE_PRECISION_HINT": model.get_rt_info(["nightquant", "precision"]).astype(str),
    "INFERENCE_NUM_THREADS": 1,
})
outputs = compiled([{{ m.model.inputs | map(attribute="name") | join(", ") }}])  # NumPy arrays
"""

"""Runtime ``aot-inductor``: exported by torch.export and compiled ahead of time to machine code, ``model.pt2``.

Neither TorchScript nor ``torch.ao.quantization`` is used here, which upstream has deprecated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from storage.digest import JsonObject
from tasks.quantize.spec import limit, spec_of
from tasks.runtimes.base import Checker, RawCall, RawTensor, Runtime

if TYPE_CHECKING:
    from tasks.runtimes.aot_compile import AotMaker
    from tasks.runtimes.aot_package import AotOpener
    from tasks.workload.recipe import Recipe


def load_aot_inductor(files: dict[str, bytes], manifest: JsonObject) -> RawCall:
    """Open ``model.pt2``, and its operators' library, with the torch and on the kind of processor of its making."""
    import ctypes
    import tempfile
    from importlib.metadata import version
    from pathlib import Path

    import torch
    from torch._inductor import codecache

    if version("torch") != manifest["versions"]["torch"]:
        raise RuntimeError(f"compiled for torch {manifest['versions']['torch']}, and this is {version('torch')}")
    here = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    missing = [name for name in manifest["required_isa"]["instructions"] if name not in here]
    if missing:
        raise RuntimeError(f"compiled for a processor with {', '.join(missing)}, which this one lacks")
    name, *libraries = manifest["model"]["files"]
    with tempfile.TemporaryDirectory() as folder:  # of this user alone; the loader takes paths
        for file in (name, *libraries):
            Path(folder, file).write_bytes(files[file])
        for library in libraries:
            torch.ops.load_library(Path(folder, library))  # type: ignore[no-untyped-call]
        # To warn of what was checked above, torch would try out a compiler, in a folder that others can write.
        codecache.get_device_information = lambda device_type: {}
        model = torch._inductor.aoti_load_package(str(Path(folder, name)))

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


class AotInductor(Runtime):
    """Compiles the float model, or what a method or torchao's PT2E made of it."""

    extra = "inductor"
    main_file = "model.pt2"
    limits = (
        limit("onednn", True, reason="a compiled package cannot switch oneDNN off"),
        limit(
            "form",
            "ordinary",
            "graph",
            reason='it does not carry out method "{recipe.method}"; use torchscript or onnxruntime for it',
        ),
        limit(
            "granularities",
            "channel",
            reason='its int8 kernels take weights per channel only: use weights = "per-channel"',
        ),
        limit("graphs", "auto", reason='it quantizes the graph of torch.export, and knows no graph = "{graph}"'),
        limit(
            "engine", None, "x86", "onednn", reason='its int8 kernels are those of oneDNN, not of the engine "{engine}"'
        ),
    )
    compiles = True
    distributions = ("torch", "torchao")
    caution = "A compiled package is a program, for one version of torch and one kind of processor."
    usage = """\
import os

import torch

# Compiled for torch {{ m.versions.torch }} on {{ m.required_isa.architecture }} with
# {{ m.required_isa.instructions | join(", ") }}.
{% for library in m.model.files[1:] %}
torch.ops.load_library("{{ library }}")
{% endfor %}
# Loading tries out the C++ compiler, if there is one; by default in a folder that others can write.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.expanduser("~/.cache/inductor"))
model = torch._inductor.aoti_load_package("{{ m.model.file }}")
with torch.inference_mode():
    # As model(...), which reads descriptions of inputs and outputs in every call.
    outputs = model.loader.run([{{ m.model.inputs | map(attribute="name") | join(", ") }}])
"""
    not_reproducible: ClassVar[dict[str, str]] = {
        "model.pt2": "a package holds what the C++ compiler made in folders of random names; the file is the very one "
        "that was measured, but making it anew gives other bytes"
    }

    def checker(self) -> Checker:
        """Open ``model.pt2`` with torch alone."""
        return load_aot_inductor

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """Return those that the compiler may use, by their names in ``/proc/cpuinfo``."""
        from tasks.runtimes.aot_package import instructions_for

        return instructions_for(spec_of(recipe))

    def maker(self) -> AotMaker:
        """Import exporter, quantizer and compiler."""
        from tasks.runtimes.aot_compile import AotMaker

        return AotMaker()

    def opener(self) -> AotOpener:
        """Import what opens packages."""
        from tasks.runtimes.aot_package import AotOpener

        return AotOpener()

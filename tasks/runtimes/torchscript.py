"""Runtime ``torchscript``: traced with the example inputs, frozen, and loadable where this project is not installed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from storage.documents import JsonObject
from storage.errors import QuantizationError
from tasks.runtimes.base import CandidateFiles, Checker, Made, RawCall, RawTensor, TorchRuntime

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.outputs import Call
    from tasks.quantize.source import ModelSource
    from tasks.workload.recipe import Recipe

MODEL = "model.ts"


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


class TorchScript(TorchRuntime):
    """Traces the converted module, which it shares."""

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
        MODEL: "TorchScript numbers its types by what the process traced before and keeps source locations; the file "
        "is the very one that was measured, but making it anew gives other bytes"
    }

    def checker(self) -> Checker:
        """Open ``model.ts`` with torch alone."""
        return load_torchscript

    def obstacle(self, recipe: Recipe) -> str:
        """A switch of the calling process cannot be carried by a file, nor can a library."""
        if recipe.needs_library:
            return "a TorchScript file cannot hold the library of operators that the recipe's modules call"
        return "a TorchScript file cannot switch oneDNN off" if getattr(recipe, "onednn", True) is False else ""

    def make(self, source: ModelSource, recipe: Recipe, folder: Path) -> Made:
        """Trace, freeze and save the module; the size is the file's."""
        from tasks.extensions import METHODS
        from tasks.outputs import outputs_of
        from tasks.quantize.converted import Structure, find_or_convert, open_converted, refuse_changed

        converted, script = find_or_convert(source, recipe), folder / MODEL
        with METHODS[recipe.method].running(recipe):
            model = open_converted(converted)
            write_script(model, source.example_inputs, script, exact=recipe.quantized_engine is not None)
            before, after = (outputs_of(each, source.example_inputs) for each in (model, read_script(script)))
        refuse_changed(before, after, recipe, "TorchScript")
        structure = Structure.read(converted)
        return Made(size_bytes=script.stat().st_size, coverage=structure.coverage, graph=structure.graph)

    def load(self, files: CandidateFiles) -> Call:
        """Load the file."""
        return read_script(files.folder / MODEL)


def write_script(model: nn.Module, example_inputs: Mapping[str, Tensor], path: Path, *, exact: bool) -> None:
    """Trace, freeze and save a model.

    `exact` keeps every operation as it is, for outputs equal to the model's bit for bit; otherwise freezing may fold
    float operations into each other (a batch norm into its convolution), which is faster and rounds differently.

    Raises
    ------
    QuantizationError
        The model cannot be traced.
    """
    import torch
    from torch.jit._trace import TracerWarning

    from tasks.libraries import in_one_line
    from tasks.quantize.engine import without_deprecations

    with without_deprecations(), torch.no_grad():
        # Tracing passes by checks of shapes in torch and transformers, and reads every property that a module has; a
        # warning about the user's own code stays.
        warnings.filterwarnings("ignore", category=TracerWarning, module=r"(torch|transformers)\.")
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")
        try:
            traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                model, tuple(example_inputs.values()), check_trace=False
            )
        except Exception as error:
            raise QuantizationError(
                f"The model cannot be traced to TorchScript: {in_one_line(error)}.",
                hint="Rewrite what the message is about, or take the runtime torchscript out of the recipe.",
            ) from error
        frozen: torch.jit.ScriptModule = torch.jit.freeze(traced.eval(), optimize_numerics=not exact)
        # Not frozen.save(path): on a full disk torch's writer aborts the whole process.
        path.write_bytes(frozen.save_to_buffer())


def read_script(path: Path) -> nn.Module:
    """Load what `write_script` wrote; packed weights are packed for the engine that is set now."""
    import torch

    from tasks.quantize.engine import without_deprecations

    with without_deprecations():
        script: nn.Module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    return script

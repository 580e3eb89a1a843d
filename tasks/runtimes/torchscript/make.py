"""Trace converted modules to TorchScript files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning

from tasks.data.outputs import outputs_of
from tasks.quantize.converted import Structure, exactness, find_or_convert, open_converted, refuse_other
from tasks.quantize.engine import running, without_deprecations
from tasks.quantize.source import ModelSource, refusing
from tasks.quantize.spec import Spec
from tasks.runtimes.base import Made
from tasks.runtimes.eager.make import EagerMaker
from tasks.runtimes.torchscript.open import MODEL, read_script


class ScriptMaker(EagerMaker):
    """A maker that traces the converted module."""

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Trace, freeze and save the module; the candidate's size is the size of the file."""
        converted, script = find_or_convert(source, spec), folder / MODEL
        with running(spec):
            model = open_converted(converted)
            write_script(model, source.example_inputs, script, exact=spec.engine is not None)
            before, after = (outputs_of(module, source.example_inputs) for module in (model, read_script(script)))
        refuse_other(before, after, exactness(spec), spec, "saving as TorchScript")
        structure = Structure.read(converted)
        return Made(size_bytes=script.stat().st_size, coverage=structure.coverage)


def write_script(model: nn.Module, example_inputs: Mapping[str, Tensor], path: Path, *, exact: bool) -> None:
    """Trace, freeze and save a model.

    With `exact`, outputs equal the model's outputs bit for bit. Otherwise, freezing may fold float operations, for
    example a batch norm into a convolution, which is faster but changes the rounding.
    """
    with without_deprecations(), torch.no_grad():
        # Tracing triggers warnings from torch and transformers, because it runs shape checks and reads every property
        # of a module. Warnings about the user's own code stay visible.
        warnings.filterwarnings("ignore", category=TracerWarning, module=r"(torch|transformers)\.")
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")
        hint = "Rewrite the code named in the message, or remove the torchscript runtime from the recipe."
        with refusing("The model cannot be traced to TorchScript", hint):
            traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                model, tuple(example_inputs.values()), check_trace=False
            )
            # torch never frees the weights of a frozen module, unless the module was loaded (torch 2.15).
            loaded = torch.jit.load(io.BytesIO(traced.eval().save_to_buffer()))  # type: ignore[no-untyped-call]
        frozen: torch.jit.ScriptModule = torch.jit.freeze(loaded, optimize_numerics=not exact)
        # Do not use ``frozen.save(path)``, because torch's writer aborts the process if the disk is full.
        path.write_bytes(frozen.save_to_buffer())

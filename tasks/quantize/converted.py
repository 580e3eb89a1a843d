"""Convert torch modules, and store them without pickle, as artifacts that all torch runtimes share."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Self

import torch
from pydantic import SerializeAsAny
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.outputs import finite_outputs, outputs_of
from tasks.quantize.base import converter_of
from tasks.quantize.carried import settle
from tasks.quantize.engine import RefusingReferenceLoops, instruction_set, running, without_deprecations
from tasks.quantize.operators import load_libraries
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, spec_of
from tasks.quantize.state import flatten_state, load_flat_state
from tasks.refs import Architecture, Frozen, ModuleCoverage
from tasks.sources import code_digest
from tasks.tensor_files import save_tensors
from tasks.workload.recipe import Recipe

KIND = "converted"
STRUCTURE, WEIGHTS = "structure.json", "weights.safetensors"


class TensorSpec(Frozen):
    """The shape and dtype of an example input."""

    shape: tuple[int, ...]
    dtype: str


class Structure(Frozen):
    """A converted module without its tensors.

    ``architecture`` describes the float model. ``size_bytes`` is the size of a ``torch.save`` file that contains the
    state dict.
    """

    recipe: SerializeAsAny[Recipe]
    architecture: Architecture
    example_inputs: dict[str, TensorSpec]
    size_bytes: int
    coverage: tuple[ModuleCoverage, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the structure of an artifact."""
        return cls.model_validate_json((folder / STRUCTURE).read_text(encoding="utf-8"))


def find_or_convert(source: ModelSource, spec: Spec) -> Path:
    """Apply a spec to a torch module, or reuse an earlier result; return the folder, whose name is the digest."""
    library = converter_of(spec).library(source.workspace)
    made_from = {
        **source.made_from,
        "spec": spec.content(),
        "instruction_set": instruction_set(),
        "conversion": code_digest(*source.code_of(spec), __name__),
    }
    if library is not None:
        made_from["library"] = library.parent.name
    return source.workspace.find_or_make(KIND, made_from, partial(_convert, source, spec, library))


def open_converted(folder: Path) -> nn.Module:
    """Rebuild a converted module for evaluation on the CPU, with weights packed for the current quantized engine."""
    structure = Structure.read(folder)
    load_libraries(folder)
    spec, model = spec_of(structure.recipe), settle(structure.architecture.build().eval())
    examples = {
        name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
        for name, spec in structure.example_inputs.items()
    }
    with _quietly(spec):
        converter = converter_of(spec)
        rebuilt = converter.skeleton(model, spec, examples)
        load_flat_state(rebuilt, load_file(folder / WEIGHTS))
    return converter.pack(rebuilt).eval()


def refuse_other(before: Sequence[Tensor], after: Sequence[Tensor], fraction: float, spec: Spec, step: str) -> None:
    """Raise `QuantizationError` if `step` changed a model's outputs.

    `fraction` is the tolerance as a fraction of the outputs' range; if it is 0, the outputs must be equal bit for bit.
    """
    if len(before) != len(after) or not all(map(is_close, before, after, repeat(fraction))):
        raise QuantizationError(
            f'The outputs of the model changed after {step} with recipe "{spec.recipe.name}".',
            hint="Make the model's code independent of input values and of values that are not in its state dict.",
        )


def exactness(spec: Spec) -> float:
    """Return the tolerance for a saved model's outputs: 0, unless saving can fold batch norms."""
    return 0.0 if spec.engine is not None else spec.tolerance


def is_close(left: Tensor, right: Tensor, fraction: float) -> bool:
    """Return whether `left` and `right` differ by at most `fraction` of the range of `left`; return False for NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    low, high = left.double().aminmax()
    allowed = fraction * float(high - low or high.abs())
    return float((left.double() - right.double()).abs().max()) <= allowed


def _quietly(spec: Spec) -> AbstractContextManager[None]:
    """Silence deprecation warnings if the spec has an engine, because PyTorch has deprecated quantized engines."""
    return nullcontext() if spec.engine is None else without_deprecations()


def _convert(source: ModelSource, spec: Spec, library: Path | None, folder: Path) -> None:
    examples = source.example_inputs
    if library is not None:
        shutil.copyfile(library, folder / library.name)
        load_libraries(folder)
    with running(spec), _quietly(spec):
        converted = converter_of(spec).convert(source.float_model(), spec, source)
        with RefusingReferenceLoops():
            outputs = finite_outputs(converted.model, examples, spec.recipe.name)
        state, buffer = converted.model.state_dict(), io.BytesIO()
        save_tensors(flatten_state(state), folder / WEIGHTS)
        torch.save(state, buffer)
        structure = Structure(
            recipe=spec.recipe,
            architecture=source.architecture,
            example_inputs={
                name: TensorSpec(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
                for name, tensor in examples.items()
            },
            size_bytes=buffer.getbuffer().nbytes,
            coverage=converted.coverage,
        )
        (folder / STRUCTURE).write_text(structure.model_dump_json(indent=1), encoding="utf-8")
        after = outputs_of(open_converted(folder), examples)
    refuse_other(outputs, after, exactness(spec), spec, "saving as plain tensors")

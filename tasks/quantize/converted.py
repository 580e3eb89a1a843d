"""A recipe's converted torch module: an artifact that the torch runtimes share, made once and kept without a pickle."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from pathlib import Path
from typing import Self

import torch
from pydantic import SerializeAsAny
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.artifacts import artifact_digest
from storage.errors import QuantizationError
from tasks.extensions import METHODS
from tasks.outputs import finite_outputs, outputs_of
from tasks.quantize.base import Converter, converter_of
from tasks.quantize.engine import instruction_set, running, without_deprecations
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
    """Shape and dtype of an example input."""

    shape: tuple[int, ...]
    dtype: str


class Structure(Frozen):
    """A converted module without its tensors.

    ``architecture`` is the float model's; ``size_bytes`` is that of the state dict as ``torch.save`` writes it.
    """

    schema_version: int = 3
    recipe: SerializeAsAny[Recipe]
    architecture: Architecture
    graph: str
    example_inputs: dict[str, TensorSpec]
    size_bytes: int
    coverage: tuple[ModuleCoverage, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the structure of an artifact.

        Raises
        ------
        QuantizationError
            The folder holds none that this version can read.
        """
        try:
            return cls.model_validate_json((folder / STRUCTURE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise QuantizationError(
                f"{folder} holds no converted module that this version can read: {error}", hint="Run the night again."
            ) from error


def find_or_convert(source: ModelSource, spec: Spec) -> Path:
    """Carry a spec out on a torch module, or find what was made before; the artifact's folder, named by its digest.

    Raises
    ------
    QuantizationError
        The spec cannot be carried out on this model or processor, or its result computes NaN or infinities.
    """
    recipe = spec.recipe
    method = METHODS[recipe.method]
    converter = converter_of(spec)
    library = converter.library(source.workspace)
    data = [source.calibration.made_by] if method.needs and source.calibration else []
    made_from = {
        **source.made_from,
        "recipe": recipe.content(),
        "instruction_set": instruction_set(),
        "conversion": code_digest(type(method).__module__, __name__, *data),
    }
    if library is not None:
        made_from["library"] = library.parent.name
    digest = artifact_digest(KIND, made_from)
    store = source.workspace.store
    if (found := store.find(KIND, digest)) is not None:
        return found
    with source.workspace.alone(digest):
        if store.find(KIND, digest) is None:
            with store.create(KIND, digest, made_from) as folder, running(spec), _quietly(spec):
                if library is not None:
                    shutil.copyfile(library, folder / library.name)
                    load_libraries(folder)
                _convert(source, spec, converter, folder)
    return store.path(KIND, digest)


def open_converted(folder: Path) -> nn.Module:
    """Rebuild a converted module, in evaluation mode on the CPU, packed for the quantized engine that is set now."""
    structure = Structure.read(folder)
    load_libraries(folder)
    spec, model = spec_of(structure.recipe), structure.architecture.build().eval()
    examples = {
        name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
        for name, spec in structure.example_inputs.items()
    }
    with _quietly(spec):
        rebuilt = converter_of(spec).skeleton(model, spec, structure.graph, examples)
        load_flat_state(rebuilt, load_file(folder / WEIGHTS))
    return rebuilt.eval()


def refuse_changed(before: Sequence[Tensor], after: Sequence[Tensor], spec: Spec, form: str) -> None:
    """Refuse, with a `QuantizationError`, what computes something else once it is saved and opened again.

    Quantized kernels must give the same bits. A float model's batch norms may be folded into its convolutions
    meanwhile, which rounds differently.
    """
    share = 0.0 if spec.engine is not None else spec.tolerance
    if len(before) != len(after) or not all(map(is_close, before, after, repeat(share))):
        raise QuantizationError(
            f'The recipe "{spec.recipe.name}" gives a model that computes something else once it is saved as {form}.',
            hint="A part of the model that depends on its input's values cannot be saved: exclude or rewrite it.",
        )


def is_close(left: Tensor, right: Tensor, share: float) -> bool:
    """Whether two tensors differ by no more than a share of the first one's range; NaN is close to nothing."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    low, high = left.double().aminmax()
    allowed = share * float(high - low or high.abs())
    return float((left.double() - right.double()).abs().max()) <= allowed


def _quietly(spec: Spec) -> AbstractContextManager[None]:
    """Silence the warnings of what upstream has deprecated, which quantized engines are part of."""
    return nullcontext() if spec.engine is None else without_deprecations()


def _convert(source: ModelSource, spec: Spec, converter: Converter, folder: Path) -> None:
    examples = source.example_inputs
    converted = converter.convert(source.float_model(), spec, source)
    outputs = finite_outputs(converted.model, examples, spec.recipe.name)
    state = converted.model.state_dict()
    save_tensors(flatten_state(state), folder / WEIGHTS)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    structure = Structure(
        recipe=spec.recipe,
        architecture=source.architecture,
        graph=converted.graph,
        example_inputs={
            name: TensorSpec(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))
            for name, tensor in examples.items()
        },
        size_bytes=buffer.getbuffer().nbytes,
        coverage=converted.coverage,
    )
    (folder / STRUCTURE).write_text(structure.model_dump_json(indent=1), encoding="utf-8")
    refuse_changed(outputs, outputs_of(open_converted(folder), examples), spec, "plain tensors")

"""A recipe's converted torch module: an artifact that the torch runtimes share, made once and kept without a pickle."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.artifacts import artifact_digest
from storage.errors import QuantizationError
from tasks.domains import DOMAINS
from tasks.outputs import tensors_of
from tasks.quantize.engine import instruction_set
from tasks.quantize.methods import METHODS
from tasks.quantize.source import ModelSource
from tasks.quantize.state import flatten_state, load_flat_state
from tasks.quantize.structure import WEIGHTS, Structure, TensorSpec
from tasks.quantize.warnings import without_deprecations
from tasks.sources import code_digest
from tasks.tensor_files import save_tensors
from tasks.workload.recipe import Recipe

KIND = "converted"


def find_or_convert(source: ModelSource, recipe: Recipe) -> str:
    """Carry a recipe out on a torch module, or find what was made before; the artifact's digest.

    Raises
    ------
    QuantizationError
        The recipe cannot be carried out on this model or processor, or its result computes NaN or infinities.
    """
    method = METHODS[recipe.method]
    roots: list[str] = [type(method).__module__, __name__]
    data = [source.calibrator.calibration] if method.needs else []
    made_from = {
        **source.made_from,
        "recipe": recipe.content(),
        "instruction_set": instruction_set(),
        "conversion": code_digest(*roots, *data),
    }
    digest = artifact_digest(KIND, made_from)
    store = source.workspace.store
    if store.find(KIND, digest) is not None:
        return digest
    with source.workspace.alone(digest):
        if store.find(KIND, digest) is None:
            with store.create(KIND, digest, made_from) as folder, method.running(recipe), without_deprecations():
                _convert(source, recipe, folder)
    return digest


def open_converted(folder: Path) -> nn.Module:
    """Rebuild a converted module, in evaluation mode on the CPU, packed for the quantized engine that is set now."""
    structure = Structure.read(folder)
    recipe, domain = structure.recipe, DOMAINS[structure.domain]
    model = domain.build(domain.parse_model(structure.model), structure.dataset).eval()
    examples = {name: spec.zeros() for name, spec in structure.example_inputs.items()}
    with without_deprecations():
        rebuilt = METHODS[recipe.method].skeleton(model, recipe, structure.graph, examples)
        load_flat_state(rebuilt, load_file(folder / WEIGHTS))
    return rebuilt.eval()


def outputs_of(model: nn.Module, examples: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Call a model with its example inputs."""
    with torch.inference_mode():
        return tensors_of(model(*examples.values()))


def refuse_changed(before: Sequence[Tensor], after: Sequence[Tensor], recipe: Recipe, form: str) -> None:
    """Refuse what computes something else once it is saved and opened again.

    A float model's batch norms may be folded into its convolutions meanwhile, which rounds differently.

    Raises
    ------
    QuantizationError
        The outputs differ.
    """
    exact = recipe.quantized_engine is not None
    alike = torch.equal if exact else lambda left, right: torch.allclose(left, right, rtol=1e-3, atol=1e-4)
    if len(before) != len(after) or not all(map(alike, before, after)):
        raise QuantizationError(
            f'The recipe "{recipe.name}" gives a model that computes something else once it is saved as {form}.',
            hint="A part of the model that depends on its input's values cannot be saved: exclude or rewrite it.",
        )


def _convert(source: ModelSource, recipe: Recipe, folder: Path) -> None:
    examples = source.example_inputs
    converted = METHODS[recipe.method].convert(source.float_model(), recipe, source)
    outputs = _finite_outputs(converted.model, examples, recipe)
    state = converted.model.state_dict()
    save_tensors(flatten_state(state), folder / WEIGHTS)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    Structure(
        recipe=recipe,
        domain=source.job.workload.domain,
        model=source.job.workload.model.model_dump(mode="json"),
        dataset=source.job.dataset,
        graph=converted.graph,
        example_inputs={name: TensorSpec.of(tensor) for name, tensor in examples.items()},
        size_bytes=buffer.getbuffer().nbytes,
        coverage=converted.coverage,
    ).write(folder)
    refuse_changed(outputs, outputs_of(open_converted(folder), examples), recipe, "plain tensors")


def _finite_outputs(model: nn.Module, examples: Mapping[str, Tensor], recipe: Recipe) -> tuple[Tensor, ...]:
    try:
        outputs = outputs_of(model, examples)
    except RuntimeError as error:
        raise QuantizationError(
            f'The recipe "{recipe.name}" gives a model that cannot be run: {error}',
            hint="Exclude the modules that the message is about.",
        ) from error
    for index, output in enumerate(outputs):
        if not bool(torch.isfinite(output).all()):
            raise QuantizationError(
                f'The recipe "{recipe.name}" gives a model whose output {index} holds NaN or infinities on real input.',
                hint="Exclude modules from the recipe, or check the checkpoint.",
            )
    return outputs

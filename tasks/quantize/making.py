"""Making a quantized model: found by digest, or converted, checked and written."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from sys import modules
from typing import Any

import torch
from torch import Tensor, nn

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import source_digest
from storage.errors import QuantizationError
from tasks.models import build, example_inputs
from tasks.outputs import returned_tensors
from tasks.progress import Progress, silent
from tasks.quantize.base import Context, method_named
from tasks.quantize.engine import instruction_set, quantized_engine
from tasks.quantize.loading import open_model
from tasks.quantize.state import flatten_state, versions_of
from tasks.quantize.structure import SCRIPT, WEIGHTS, Structure, TensorSpec
from tasks.quantize.warnings import quiet
from tasks.refs import CheckpointRef, DatasetRef, QuantizedRef
from tasks.runtimes.script import write_script
from tasks.sources import model_sources
from tasks.tensor_files import save_tensors
from tasks.workload.recipe import Recipe, Runtime
from tasks.workload.workload import Workload

KIND = "quantized"


def quantize(
    workload: Workload,
    recipe: Recipe,
    dataset: DatasetRef,
    checkpoint: CheckpointRef,
    store: ArtifactStore,
    progress: Progress = silent,
) -> QuantizedRef:
    """Quantize the workload's checkpoint as the recipe says, or find what was made before.

    Raises
    ------
    QuantizationError
        The recipe cannot be carried out on this model or processor, or its result computes NaN or infinities.
    """
    model = build(workload.model, dataset)
    made_from = _made_from(workload, recipe, dataset, checkpoint, model)
    digest = artifact_digest(KIND, made_from)
    folder = store.find(KIND, digest)
    if folder is None:
        with store.create(KIND, digest, made_from) as folder, quantized_engine(recipe.engine), quiet():
            structure = _make(model, workload, recipe, dataset, checkpoint, store, progress, folder)
    else:
        structure = Structure.read(folder)
    return QuantizedRef(
        kind=KIND,
        digest=digest,
        recipe=recipe.name,
        method=recipe.method,
        engine=recipe.engine,
        flow=structure.flow,
        size_bytes=structure.size_bytes,
        coverage=structure.coverage,
    )


def _made_from(
    workload: Workload, recipe: Recipe, dataset: DatasetRef, checkpoint: CheckpointRef, model: nn.Module
) -> dict[str, Any]:
    method = modules[type(method_named(recipe.method)).__module__]
    own = [modules[f"tasks.quantize.{name}"] for name in ("making", "state", "packed", "script", "coverage")]
    return {
        "checkpoint": checkpoint.digest,
        # Its data matter to calibration and to training, and its sizes to every model.
        "dataset": dataset.digest,
        "model": workload.model.model_dump(mode="json"),
        # A recipe's name and runtimes say how its result is used, not what it is.
        "recipe": recipe.model_dump(mode="json", exclude={"name", "runtimes"}),
        "traced_with": workload.benchmark.model_dump(mode="json", include={"batch_size", "sequence_length"}),
        "torch": torch.__version__,
        "instruction_set": instruction_set(),
        "source": source_digest(*model_sources(model, workload.model), method, *getattr(method, "PARTS", ()), *own),
    }


def _make(
    model: nn.Module,
    workload: Workload,
    recipe: Recipe,
    dataset: DatasetRef,
    checkpoint: CheckpointRef,
    store: ArtifactStore,
    progress: Progress,
    folder: Path,
) -> Structure:
    from tasks.checkpoint import load_state

    model.load_state_dict(load_state(checkpoint, store))
    examples = example_inputs(workload, dataset, store)
    context = Context(workload, dataset, store, examples, progress)
    converted = method_named(recipe.method).convert(model.eval(), recipe, context)
    outputs = _finite_outputs(converted.model, examples, recipe)
    state = converted.model.state_dict()
    tensors, entries = flatten_state(state)
    save_tensors(tensors, folder / WEIGHTS)
    write_script(converted.model, examples, folder / SCRIPT, exact=recipe.method != "none")
    structure = Structure(
        recipe=recipe,
        model=workload.model,
        dataset=dataset,
        flow=converted.flow,
        example_inputs={name: TensorSpec.of(tensor) for name, tensor in examples.items()},
        entries=entries,
        versions=versions_of(state),
        size_bytes={"eager": _serialized_bytes(state), "torchscript": (folder / SCRIPT).stat().st_size},
        coverage=converted.coverage,
    )
    structure.write(folder)
    _refuse_changed(folder, examples, outputs, recipe)
    return structure


def _outputs(model: nn.Module, examples: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        return returned_tensors(model(*examples.values()))


def _finite_outputs(model: nn.Module, examples: Mapping[str, Tensor], recipe: Recipe) -> tuple[Tensor, ...]:
    try:
        outputs = _outputs(model, examples)
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


def _refuse_changed(folder: Path, examples: Mapping[str, Tensor], outputs: Sequence[Tensor], recipe: Recipe) -> None:
    """Open what was written, as everyone who uses it will, and hold its outputs against those of what was converted."""
    runtimes: tuple[Runtime, ...] = ("eager", "torchscript")
    for runtime in runtimes:
        again = _outputs(open_model(folder, runtime), examples)
        # Freezing a float model folds its batch norms into its convolutions, which rounds otherwise.
        same = partial(torch.allclose, rtol=1e-3, atol=1e-4) if recipe.method == "none" else torch.equal
        if len(again) != len(outputs) or not all(map(same, outputs, again)):
            raise QuantizationError(
                f'The recipe "{recipe.name}" gives a model that computes something else once it is saved as {runtime}.',
                hint="A part of the model that depends on its input's values cannot be saved: exclude or rewrite it.",
            )


def _serialized_bytes(state: Mapping[str, Any]) -> int:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer().nbytes

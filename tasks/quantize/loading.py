"""Opening a quantized model: lean, from its folder alone, and without unpickling anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from storage.errors import QuantizationError
from tasks.models import build
from tasks.quantize.base import method_named
from tasks.quantize.engine import bind_engine, quantized_engine
from tasks.quantize.state import restore_state
from tasks.quantize.structure import SCRIPT, WEIGHTS, Structure
from tasks.quantize.warnings import quiet
from tasks.runtimes.script import read_script
from tasks.workload.recipe import Runtime


def load(folder: Path, runtime: Runtime) -> nn.Module:
    """Open the model in `folder` for `runtime`, in evaluation mode on the CPU.

    The model may be called under any setting of the quantized engine that agrees with the present one on whether it is
    qnnpack; nobody but a call within ``quantized_engine("qnnpack")`` leaves that.

    Raises
    ------
    QuantizationError
        The folder is not what `quantize` wrote, or this processor does not support its engine.
    """
    recipe = _structure(folder).recipe
    with quantized_engine(recipe.engine), quiet():
        model = open_model(folder, runtime)
    return bind_engine(model, recipe.engine) if recipe.method in ("static", "qat") else model


def open_model(folder: Path, runtime: Runtime) -> nn.Module:
    """Open the model in `folder`, packed for the engine that is set now."""
    return _LOADERS[runtime](folder)


def engine_of(folder: Path) -> str:
    """The quantized engine that the model in `folder` is packed for."""
    return _structure(folder).recipe.engine


def _structure(folder: Path) -> Structure:
    try:
        return Structure.read(folder)
    except (OSError, ValueError) as error:
        raise QuantizationError(
            f"{folder} holds no quantized model that this version can read: {error}", hint="Run the night again."
        ) from error


def _load_eager(folder: Path) -> nn.Module:
    structure = _structure(folder)
    examples = {name: spec.zeros() for name, spec in structure.example_inputs.items()}
    method = method_named(structure.recipe.method)
    model = method.skeleton(build(structure.model, structure.dataset), structure.recipe, structure.flow, examples)
    model.load_state_dict(restore_state(load_file(folder / WEIGHTS), structure.entries, structure.versions))
    return model.eval()


_LOADERS: dict[Runtime, Callable[[Path], nn.Module]] = {
    "eager": _load_eager,
    "torchscript": lambda folder: read_script(folder / SCRIPT),
}

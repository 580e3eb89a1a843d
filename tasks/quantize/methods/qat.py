"""Quantization-aware training: simulate quantization, fine-tune, convert."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from sys import modules

import torch
from torch import nn

from storage.digest import digest_of, source_digest
from storage.errors import InputError, QuantizationError
from tasks.quantize import fine_tune as training
from tasks.quantize import training_state
from tasks.quantize.base import Context, Converted
from tasks.quantize.coverage import leaves_of
from tasks.quantize.graph.attribution import attribute
from tasks.quantize.graph.calibrate import refuse_non_finite_state
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.graph.smoke_test import try_out
from tasks.quantize.methods.static import PARTS as STATIC_PARTS
from tasks.quantize.methods.static import Static, finished, observed
from tasks.sources import model_sources
from tasks.workload.recipe import QatRecipe, Recipe

# What besides this module decides the result.
PARTS = (*STATIC_PARTS, modules[Static.__module__], training, training_state)


class Qat:
    """Weights and activations to int8 after training against the error that this makes."""

    def convert(self, model: nn.Module, recipe: Recipe, context: Context) -> Converted:
        """Fine-tune on a GPU where there is one, else on the CPU; go on from the last epoch that was finished.

        Raises
        ------
        QuantizationError
            As for static quantization, and where training diverges.
        InputError
            There are too few training images.
        """
        if not isinstance(recipe, QatRecipe):
            raise TypeError(f"expected a qat recipe, got {recipe.method}")
        refuse_non_finite_state(model)
        leaves = leaves_of(model)
        digest = _training_digest(model, recipe, context)
        plan = make_plan(model, recipe, context.example_inputs)
        prepared = observed(model, plan, recipe, context.example_inputs)
        # Equal trainings take turns: they would write and remove the same folder.
        with training_state.alone(context.store, digest) as work:
            converted = _trained(prepared, recipe, context, work)
        return Converted(converted, plan.flow, attribute(leaves, converted, plan))

    def skeleton(
        self, model: nn.Module, recipe: Recipe, flow: str, example_inputs: Mapping[str, torch.Tensor]
    ) -> nn.Module:
        """The same structure with default scales; `flow` is the one that `convert` took."""
        return Static().skeleton(model, recipe, flow, example_inputs)


def _trained(prepared: nn.Module, recipe: QatRecipe, context: Context, work: Path) -> nn.Module:
    """The converted model; `work` stays only where the process or the machine, not the training, failed."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        converted = finished(training.fine_tune(prepared, recipe, context, work, device))
        try_out(converted, context.example_inputs)
    except (InputError, QuantizationError):
        # Going on from here would end the same way.
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)
    return converted


def _training_digest(model: nn.Module, recipe: QatRecipe, context: Context) -> str:
    """Everything that the course of training depends on; another course must not go on from this one's epochs."""
    weights = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest_of(
        {
            "weights": weights.hexdigest(),
            # Equal weights say nothing of the layers without any, and a factory's arguments decide those too.
            "model": context.workload.model.model_dump(mode="json"),
            "recipe": recipe.model_dump(mode="json", exclude={"name", "runtimes"}),
            "dataset": context.dataset.digest,
            "torch": torch.__version__,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "source": source_digest(*model_sources(model, context.workload.model), modules[__name__], *PARTS),
        }
    )

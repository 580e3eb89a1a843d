"""The fine-tuned state of quantization-aware training: an artifact of its own, made once for all runtimes."""

from __future__ import annotations

import hashlib

import torch
from safetensors.torch import load_file
from torch import nn

from storage.artifacts import artifact_digest
from tasks.compute import training_device
from tasks.quantize.fine_tune import fine_tune
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.source import ModelSource
from tasks.sources import code_digest
from tasks.tensor_files import save_tensors

KIND = "fine-tuned"
WEIGHTS = "weights.safetensors"


def fine_tuned(prepared: nn.Module, recipe: QatRecipe, source: ModelSource) -> nn.Module:
    """Train a prepared model, or give it the state that an equal training gave before.

    Parameters
    ----------
    prepared
        With fake quantization, in training mode; it is changed.

    Returns
    -------
    nn.Module
        The same model with the weights and ranges of its best epoch, on the CPU in evaluation mode.

    Raises
    ------
    QuantizationError
        Training diverges.
    InputError
        There are too few training samples.
    """
    device = training_device()
    store = source.workspace.store
    made_from = {
        **source.made_from,
        "recipe": recipe.content(),
        "weights": _digest_of_weights(prepared),
        "device": device.type,
        "training": code_digest("tasks.quantize.fine_tune", "tasks.quantize.graph.convert", source.tuner.fine_tuning),
    }
    digest = artifact_digest(KIND, made_from)
    with source.workspace.alone(digest) as work:
        if store.find(KIND, digest) is None:
            tuning = source.fine_tuning(recipe.batch_size)
            ranges = source.calibration(recipe.batch_size)
            best = fine_tune(prepared, recipe, tuning, ranges, work, device, source.workspace.progress)
            with store.create(KIND, digest, made_from) as folder:
                save_tensors(best, folder / WEIGHTS)
    prepared.load_state_dict(load_file(store.path(KIND, digest) / WEIGHTS))
    return prepared.cpu().eval()


def _digest_of_weights(model: nn.Module) -> str:
    weights = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        weights.update(name.encode())
        # Cloned, for memory that numpy has seen cannot be resized, as observers do with theirs.
        weights.update(
            tensor.detach().cpu().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy()
        )
    return weights.hexdigest()

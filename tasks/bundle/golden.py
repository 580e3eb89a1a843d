"""Golden inputs and outputs: what the model takes and gives, and how closely it must give it again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from storage.errors import BundleError
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Purpose

GOLDEN = "golden.safetensors"

# Names of what models return, by purpose; further outputs are called by their number.
_OUTPUTS: dict[Purpose, tuple[str, ...]] = {
    "language-model": ("logits", "h", "c"),
    "sequence": ("outputs", "h", "c"),
    "image-classification": ("logits",),
}

# Allowed difference as a share of an output's range. Float kernels of another processor round differently in the last
# digits only; in int8 a last digit can move an activation to the next of its 256 (with VNNI or 128 without) steps, and
# such steps add up from layer to layer.
_FLOAT, _HALF, _INT8 = 1e-4, 1e-2, 5e-2


@dataclass(frozen=True)
class Golden:
    """The golden tensors as the manifest describes them, in calling order; ``share`` is the tolerance's."""

    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    share: float


def describe_golden(path: Path, names: Sequence[str], recipe: Recipe, purpose: Purpose) -> Golden:
    """Describe ``golden.safetensors`` of an evaluation.

    Parameters
    ----------
    names
        The model's inputs in calling order; the file itself keeps no order.

    Raises
    ------
    BundleError
        A tensor is missing, empty or not finite.
    """
    tensors = load_file(path)
    count = sum(key.startswith("output.") for key in tensors)
    wanted = [f"input.{name}" for name in names] + [f"output.{index}" for index in range(count)]
    if sorted(wanted) != sorted(tensors) or not names or not count:
        raise BundleError(f"{path}: expected the tensors {sorted(wanted)}, found {sorted(tensors)}.")
    share = tolerance_share(recipe)
    inputs = [_describe(name, f"input.{name}", tensors) for name in names]
    known = _OUTPUTS[purpose]
    outputs = [
        _describe(known[index] if index < len(known) else f"output-{index}", f"output.{index}", tensors)
        for index in range(count)
    ]
    for output in outputs:
        # A constant output has no range; then its size, or 1, is the measure.
        spread = output["maximum"] - output["minimum"] or abs(output["maximum"]) or 1.0
        output["tolerance"] = share * spread
    return Golden(inputs, outputs, share)


def tolerance_share(recipe: Recipe) -> float:
    """How far an output may be off on another processor, as a share of its range."""
    if recipe.method == "none":
        return _FLOAT
    if recipe.method == "dynamic" and recipe.dtype == "float16" and recipe.embedding_bits is None:
        return _HALF
    return _INT8


def input_names(structure: Path) -> list[str]:
    """The model's inputs in calling order, from a quantized model's ``structure.json``."""
    document = json.loads(structure.read_text(encoding="utf-8"))
    return list(document["example_inputs"])


def _describe(name: str, key: str, tensors: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    tensor = tensors[key]
    if not tensor.size or not np.isfinite(tensor).all():
        raise BundleError(f"The golden tensor {key} is empty or holds NaN or infinities.")
    return {
        "name": name,
        "golden": key,
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "minimum": tensor.min().item(),
        "maximum": tensor.max().item(),
    }

"""``structure.json``: all that is needed to rebuild a quantized model besides its tensors, and to refer to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch

from tasks.refs import DatasetRef, Frozen, ModuleCoverage
from tasks.workload.model import Model
from tasks.workload.recipe import Recipe, Runtime

STRUCTURE, WEIGHTS, SCRIPT = "structure.json", "weights.safetensors", "model.ts"


class TensorSpec(Frozen):
    """Shape and dtype of an example input."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Describe `tensor`."""
        return cls(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))

    def zeros(self) -> torch.Tensor:
        """A tensor of this shape and dtype."""
        return torch.zeros(self.shape, dtype=getattr(torch, self.dtype))


class Structure(Frozen):
    """A quantized model without its tensors.

    ``entries`` describes each entry of the state dict in the terms of `tasks.quantize.state`; ``versions`` are those of
    the modules' layouts in it.
    """

    schema_version: int = 1
    recipe: Recipe
    model: Model
    dataset: DatasetRef
    flow: str
    example_inputs: dict[str, TensorSpec]
    entries: dict[str, dict[str, Any]]
    versions: dict[str, int]
    size_bytes: dict[Runtime, int]
    coverage: tuple[ModuleCoverage, ...]

    def write(self, folder: Path) -> None:
        """Write the structure into an artifact's folder."""
        (folder / STRUCTURE).write_text(self.model_dump_json(indent=1), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the structure of an artifact."""
        return cls.model_validate_json((folder / STRUCTURE).read_text(encoding="utf-8"))

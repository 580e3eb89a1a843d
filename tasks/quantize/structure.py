"""``structure.json``: all that is needed to rebuild a converted module besides its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import torch
from pydantic import JsonValue, SerializeAsAny

from storage.errors import QuantizationError
from tasks.refs import DatasetRef, Frozen, ModuleCoverage
from tasks.workload.recipe import Recipe

STRUCTURE, WEIGHTS = "structure.json", "weights.safetensors"


class TensorSpec(Frozen):
    """Shape and dtype of an example input."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Describe a tensor."""
        return cls(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))

    def zeros(self) -> torch.Tensor:
        """A tensor of this shape and dtype."""
        return torch.zeros(self.shape, dtype=getattr(torch, self.dtype))


class Structure(Frozen):
    """A converted module without its tensors.

    ``model`` is the section that describes the float model, in its domain's terms; ``size_bytes`` is that of the state
    dict as ``torch.save`` writes it.
    """

    schema_version: int = 2
    recipe: SerializeAsAny[Recipe]
    domain: str
    model: dict[str, JsonValue]
    dataset: DatasetRef
    graph: str
    example_inputs: dict[str, TensorSpec]
    size_bytes: int
    coverage: tuple[ModuleCoverage, ...]

    def write(self, folder: Path) -> None:
        """Write the structure into an artifact's folder."""
        (folder / STRUCTURE).write_text(self.model_dump_json(indent=1), encoding="utf-8")

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

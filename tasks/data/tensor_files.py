"""Write and read safetensors files, including golden files; torch is imported on first use.

``golden.safetensors`` contains a model's inputs and expected outputs as ``input.<name>`` and ``output.<index>``, with
the case's number and a dot before them in further cases.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from storage.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN, SAMPLES = "golden.safetensors", "samples.safetensors"
INPUT, OUTPUT = "input.", "output."
# The metadata has a single key, because safetensors writes several keys in an order that changes from run to run.
_NAMES = "names"


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; raise OSError instead of safetensors' own error, which callers do not catch."""
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error


@dataclass(frozen=True)
class Golden:
    """Inputs in calling order, and expected outputs; the ``further`` cases have the same names but different shapes."""

    inputs: dict[str, Tensor]
    outputs: tuple[Tensor, ...] = ()
    further: tuple[Golden, ...] = ()
    names: tuple[str, ...] = ()  # names of the first outputs; the name of each further output is its index

    def to_bytes(self) -> bytes:
        """Return the content of a golden file."""
        from safetensors.torch import save

        tensors: dict[str, Tensor] = {}
        for number, case in enumerate((self, *self.further)):
            prefix = case_prefix(number)
            tensors |= {f"{prefix}{INPUT}{name}": tensor.contiguous() for name, tensor in case.inputs.items()}
            tensors |= {f"{prefix}{OUTPUT}{index}": tensor.contiguous() for index, tensor in enumerate(case.outputs)}
        names = json.dumps([list(self.inputs), self.names])
        content: bytes = save(tensors, {_NAMES: names})
        return content

    @classmethod
    def read(cls, path: Path) -> Golden:
        """Read the first case of a golden file."""
        try:
            with safe_open(path, framework="pt") as file:
                names, _ = names_of(file.metadata() or {})
                outputs = sum(key.startswith(OUTPUT) for key in file.keys())  # noqa: SIM118 - not a dict
                return cls(
                    {name: file.get_tensor(INPUT + name) for name in names},
                    tuple(file.get_tensor(f"{OUTPUT}{index}") for index in range(outputs)),
                )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise MeasurementError(
                f"The golden inputs in {path} cannot be read: {error}.", hint="Run nightquant nightly again."
            ) from error


def case_prefix(number: int) -> str:
    """Return the prefix of tensor names in a case; the prefix is ``""`` for the first case."""
    return f"{number}." if number else ""


def names_of(metadata: Mapping[str, str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of inputs (in calling order) and outputs from a golden file's metadata."""
    inputs, outputs = json.loads(metadata[_NAMES])
    return inputs, outputs

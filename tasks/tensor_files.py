"""safetensors files: writing them, and the golden ones. What needs torch is found by name.

``golden.safetensors`` holds a model's inputs and the outputs of its evaluation as ``input.<name>`` and
``output.<index>``, of further cases after their number and a dot. Its metadata has the names of the inputs in calling
order and those of the outputs.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from storage.errors import MeasurementError

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN, SAMPLES = "golden.safetensors", "samples.safetensors"
INPUT, OUTPUT = "input.", "output."
# One key for both: safetensors writes several in an order that changes from run to run.
_NAMES = "names"
# safetensors gives the system's error as text alone: "I/O error: No space left on device (os error 28)".
_NUMBER = re.compile(r"(?P<reason>[^:]*) \(os error (?P<number>\d+)\)")


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file.

    Raises
    ------
    OSError
        It cannot be written; callers, such as the store, would not catch safetensors' own error.
    """
    try:
        resolve_name("safetensors.torch:save_file")(
            dict(tensors), path, metadata=dict(metadata) if metadata is not None else None
        )
    except SafetensorError as error:
        found = _NUMBER.search(str(error))
        number = int(found["number"]) if found else errno.EIO
        raise OSError(number, found["reason"].strip() if found else str(error), str(path)) from error


@dataclass(frozen=True)
class Golden:
    """Inputs in calling order, with outputs to agree with; ``further`` cases have other shapes and the same names."""

    inputs: dict[str, Tensor]
    outputs: tuple[Tensor, ...] = ()
    further: tuple[Golden, ...] = ()
    names: tuple[str, ...] = ()  # of the outputs; further ones go by their number

    def to_bytes(self) -> bytes:
        """The file's content."""
        tensors: dict[str, Tensor] = {}
        for number, case in enumerate((self, *self.further)):
            prefix = case_prefix(number)
            tensors |= {f"{prefix}{INPUT}{name}": tensor.contiguous() for name, tensor in case.inputs.items()}
            tensors |= {f"{prefix}{OUTPUT}{index}": tensor.contiguous() for index, tensor in enumerate(case.outputs)}
        names = json.dumps([list(self.inputs), self.names])
        content: bytes = resolve_name("safetensors.torch:save")(tensors, {_NAMES: names})
        return content

    @classmethod
    def read(cls, path: Path) -> Golden:
        """Read a golden file's first case.

        Raises
        ------
        MeasurementError
            It is missing, or no such file.
        """
        try:
            with safe_open(path, framework="pt") as file:
                names, _ = names_of(file.metadata() or {})
                outputs = sum(key.startswith(OUTPUT) for key in file.keys())  # noqa: SIM118 - it is no dict
                return cls(
                    {name: file.get_tensor(INPUT + name) for name in names},
                    tuple(file.get_tensor(f"{OUTPUT}{index}") for index in range(outputs)),
                )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise MeasurementError(
                f"{path}: the golden inputs cannot be read: {error}", hint="Run the night again."
            ) from error


def case_prefix(number: int) -> str:
    """What the names of a case's tensors begin with; nothing for the first."""
    return f"{number}." if number else ""


def names_of(metadata: Mapping[str, str]) -> tuple[Sequence[str], Sequence[str]]:
    """Names of the inputs in calling order and of the outputs, from a golden file's metadata."""
    inputs, outputs = json.loads(metadata[_NAMES])
    return inputs, outputs

"""From a subject to something that can be called: the golden inputs and outputs, and the model from its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from storage.errors import MeasurementError
from tasks.benchmark.messages import Subject

_INPUT, _OUTPUT = "input.", "output."


@dataclass(frozen=True)
class Golden:
    """What was evaluated: inputs by name in calling order, and outputs (empty where there are none to agree with)."""

    inputs: dict[str, Tensor]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Loaded:
    """A subject ready to be called; ``scope`` is entered around its calls, outside of what is timed."""

    call: Callable[[], Any]
    golden: tuple[Tensor, ...] = ()
    scope: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)


def load_candidate(subject: Subject) -> Loaded:
    """Open a quantized artifact and bind it to its golden inputs."""
    from tasks.quantize import engine_of, load, quantized_engine

    folder = Path(subject.folder)
    model = load(folder, subject.runtime)
    golden = read_golden(Path(subject.golden), folder)
    # Some quantized operators look at the process's engine when they run, not only when they are packed.
    return Loaded(partial(model, *golden.inputs.values()), golden.outputs, partial(quantized_engine, engine_of(folder)))


def read_golden(path: Path, folder: Path) -> Golden:
    """Read inputs and outputs; the order of the inputs is the file's own or, where it has none, the model's.

    Raises
    ------
    MeasurementError
        The file is missing or holds no inputs.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            metadata = file.metadata() or {}
    except (OSError, ValueError) as error:
        raise MeasurementError(
            f"{path}: the golden inputs cannot be read: {error}", hint="Run the night again."
        ) from error
    # safetensors sorts names, and models are called with the inputs in order.
    names = json.loads(metadata["inputs"]) if "inputs" in metadata else _input_names(folder)
    inputs = {name: tensors[_INPUT + name] for name in names}
    count = sum(name.startswith(_OUTPUT) for name in tensors)
    return Golden(inputs, tuple(tensors[f"{_OUTPUT}{index}"] for index in range(count)))


def flat(result: Any) -> tuple[Tensor, ...]:
    """A model's result as a tuple of tensors."""
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def _input_names(folder: Path) -> list[str]:
    structure = json.loads((folder / "structure.json").read_text(encoding="utf-8"))
    return list(structure["example_inputs"])

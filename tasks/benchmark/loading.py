"""From a subject to something that can be called, and whether it computes what was evaluated."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tasks.benchmark.messages import Subject
from tasks.golden import Golden
from tasks.runtimes import RUNTIMES
from tasks.runtimes.base import CandidateFiles

# Relative Euclidean distance. The same artifact in a fresh process on the same machine differs by rounding at most: a
# different split among threads, or an activation that falls into the neighbouring step of its int8 grid. Rounding stays
# below 1e-4; confusing a float model with its int8 version shows as 1e-2 and more.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Loaded:
    """A subject ready to be called; ``scope`` is entered around its calls, outside of what is timed."""

    call: Callable[[], object]
    golden: tuple[Tensor, ...] = ()
    scope: Callable[[], AbstractContextManager[None]] = nullcontext


def loader_named(name: str) -> Callable[[Subject], Loaded]:
    """The function that ``module:function`` names."""
    module, _, function = name.partition(":")
    loader: Callable[[Subject], Loaded] = getattr(importlib.import_module(module), function)
    return loader


def load_candidate(subject: Subject) -> Loaded:
    """Open a candidate and bind it to its golden inputs."""
    shared = {kind: Path(folder) for kind, folder in subject.shared.items()}
    files = CandidateFiles(Path(subject.folder), shared)
    opened = RUNTIMES[subject.runtime].open(files, torch.get_num_threads())
    golden = Golden.read(Path(subject.golden))
    return Loaded(partial(opened.call, *golden.inputs.values()), golden.outputs, opened.scope)


def disagreement(outputs: Sequence[Tensor], golden: Sequence[Tensor]) -> str:
    """Say how `outputs` differ from what was evaluated, or "" where they agree.

    Without golden outputs only finiteness is checked.
    """
    for index, output in enumerate(outputs):
        if output.is_floating_point() and not bool(torch.isfinite(output).all()):
            return f"output {index} holds NaN or infinities"
    if not golden:
        return ""
    if len(outputs) != len(golden):
        return f"the model returns {len(outputs)} outputs where {len(golden)} were evaluated"
    for index, (output, reference) in enumerate(zip(outputs, golden, strict=True)):
        if output.shape != reference.shape:
            return f"output {index} has shape {list(output.shape)} where {list(reference.shape)} was evaluated"
        distance = _relative_distance(output, reference)
        if distance > TOLERANCE:
            return (
                f"output {index} differs by {distance:.2g} (relative) from what was evaluated; allowed: {TOLERANCE:g}"
            )
    return ""


def _relative_distance(output: Tensor, reference: Tensor) -> float:
    """Euclidean norm of the difference over that of the reference (over 1 where the reference is zero)."""
    difference = torch.linalg.vector_norm(output.double() - reference.double())
    norm = torch.linalg.vector_norm(reference.double())
    return float(difference / norm if norm > 0 else difference)

"""Whether what is timed computes what was evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Relative Euclidean distance. The same artifact in a fresh process on the same machine differs by rounding at most: a
# different split among threads, or an activation that falls into the neighbouring step of its int8 grid. Rounding stays
# below 1e-4; confusing a float model with its int8 version shows as 1e-2 and more.
TOLERANCE = 1e-3


def disagreement(outputs: Sequence[Tensor], golden: Sequence[Tensor]) -> str:
    """Say how `outputs` differ from what was evaluated, or "" where they agree.

    Without golden outputs only finiteness is checked.
    """
    for index, output in enumerate(outputs):
        if output.is_floating_point() and not bool(torch.isfinite(output).all()):
            return f"output {index} holds values that are no numbers"
    if not golden:
        return ""
    if len(outputs) != len(golden):
        return f"the model gives {len(outputs)} outputs where {len(golden)} were evaluated"
    for index, (output, reference) in enumerate(zip(outputs, golden, strict=True)):
        if output.shape != reference.shape:
            return f"output {index} has shape {list(output.shape)} where {list(reference.shape)} was evaluated"
        distance = relative_distance(output, reference)
        if distance > TOLERANCE:
            return (
                f"output {index} differs by {distance:.2g} (relative) from what was evaluated; allowed: {TOLERANCE:g}"
            )
    return ""


def relative_distance(output: Tensor, reference: Tensor) -> float:
    """Euclidean norm of the difference over that of the reference (over 1 where the reference is zero)."""
    difference = torch.linalg.vector_norm(output.double() - reference.double())
    norm = torch.linalg.vector_norm(reference.double())
    return float(difference / norm if norm > 0 else difference)

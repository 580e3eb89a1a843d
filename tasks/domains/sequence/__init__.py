"""A bare LSTM on one random sequence, as PyTorch's recipe "Dynamic Quantization" has it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from tasks.data.sections import RandomSequence
from tasks.workload.base import FetchedCheckpoint, Kind, Section, SeededCheckpoint
from tasks.workload.workload import Workload


class LstmSpec(Kind):
    """A bare LSTM whose input and hidden sizes are both ``dimension``."""

    kind: Literal["lstm"]
    dimension: PositiveInt = 8
    """Input and hidden size."""
    layers: PositiveInt = 1
    """Of the LSTM."""


class Evaluate(Section):
    """``[evaluate]``: no keys; quality is the difference from the float model's outputs."""


class SequenceWorkload(Workload):
    """One LSTM, one sequence."""

    implementation = "tasks.domains.sequence.domain:Sequence"
    data: RandomSequence
    model: LstmSpec
    checkpoint: Annotated[FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate = Evaluate()

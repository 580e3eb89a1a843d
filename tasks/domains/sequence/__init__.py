"""Workload sections of the ``sequence`` domain, which runs an LSTM on a random sequence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from tasks.data.sections import RandomSequence
from tasks.workload.base import FetchedCheckpoint, Kind, Section, SeededCheckpoint
from tasks.workload.workload import Workload


class LstmSpec(Kind):
    """An LSTM without other layers."""

    kind: Literal["lstm"]
    dimension: PositiveInt = 8
    """Size of the inputs and of the hidden state."""
    layers: PositiveInt = 1
    """Number of LSTM layers."""


class Evaluate(Section):
    """An empty ``[evaluate]`` section: quality is always the difference from the float model's outputs."""


class SequenceWorkload(Workload):
    """An LSTM that reads random sequences."""

    implementation = "tasks.domains.sequence.domain:Sequence"
    data: RandomSequence
    model: LstmSpec
    checkpoint: Annotated[FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Evaluate = Evaluate()

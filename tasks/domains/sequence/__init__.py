"""A bare LSTM on one random sequence, as PyTorch's recipe "Dynamic Quantization" has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt

from tasks.domains.base import Domain, Quality
from tasks.workload.base import FetchedCheckpoint, Kind, Section, SeededCheckpoint
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.refs import DatasetRef


class RandomSequence(Kind):
    """One random input sequence and one random hidden state."""

    kind: Literal["random-sequence"]
    seed: int = 29592
    length: PositiveInt = 20
    batch_size: PositiveInt = 1


class LstmSpec(Kind):
    """A bare LSTM whose input and hidden sizes are both ``dimension``."""

    kind: Literal["lstm"]
    dimension: PositiveInt = 8
    layers: PositiveInt = 1


class SequenceWorkload(Workload):
    """One LSTM, one sequence."""

    data: RandomSequence
    model: LstmSpec
    checkpoint: Annotated[FetchedCheckpoint | SeededCheckpoint, Field(discriminator="kind")]
    evaluate: Section = Section()


class Sequence(Domain[SequenceWorkload, LstmSpec]):
    """The domain ``sequence``."""

    workload = SequenceWorkload
    outputs = ("outputs", "h", "c")

    def prepare(self, workload: SequenceWorkload, workspace: Workspace) -> DatasetRef:
        """Draw the sequence."""
        from tasks.domains.sequence.lstm import prepare_sequence

        return prepare_sequence(workload, workspace)

    def build(self, model: LstmSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network; the data set has no say in it."""
        from tasks.domains.sequence.lstm import DemonstrationLstm

        return DemonstrationLstm(model.dimension, model.layers)

    def draw_weights(self, workload: SequenceWorkload, dataset: DatasetRef, seed: int) -> dict[str, Tensor]:
        """The recipe draws its inputs first, so its weights depend on the shape of the input."""
        from tasks.domains.sequence.lstm import seeded_state

        return seeded_state(workload, seed)

    def example_inputs(
        self, workload: SequenceWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """The workload's sequence and hidden state."""
        from tasks.domains.sequence.lstm import example_sequence

        return example_sequence(workload, dataset, store, batch_size)

    def evaluate(self, job: Job[SequenceWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """How far the outputs are from the float model's; the one call is the timed one, however many rows it has."""
        from tasks.domains.sequence.lstm import compare_with_float

        return compare_with_float(job, call, workspace)

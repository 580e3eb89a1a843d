"""What candidates are made from: a float model, example inputs, and data where the domain has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tasks.data.weights import load_state
from tasks.domains import DOMAINS
from tasks.domains.base import Domain, FineTunes, GivesCalibration
from tasks.sources import model_digest
from tasks.workload.base import Kind
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from tasks.data.tuning import FineTuning, OwnTraining
    from tasks.job import Job, Workspace


@dataclass(frozen=True)
class ModelSource:
    """A job's float model and its data, as methods and runtimes ask for them."""

    job: Job[Workload]
    workspace: Workspace

    @property
    def domain(self) -> Domain[Workload, Kind]:
        """The workload's domain."""
        return DOMAINS[self.job.workload.domain]

    def float_model(self) -> nn.Module:
        """A new float model with the checkpoint's weights, in evaluation mode."""
        model = self._blank()
        model.load_state_dict(load_state(self.job.checkpoint, self.workspace.store))
        return model.eval()

    @cached_property
    def example_inputs(self) -> dict[str, Tensor]:
        """The benchmark's inputs by name, in calling order."""
        workload = self.job.workload
        return self.domain.example_inputs(
            workload, self.job.dataset, self.workspace.store, workload.benchmark.batch_size
        )

    @property
    def axes(self) -> Mapping[str, Mapping[int, str]]:
        """The inputs' open axes, as `Domain.axes` gives them."""
        return self.domain.axes(self.job.workload, self.example_inputs)

    @property
    def calibrator(self) -> GivesCalibration[Workload]:
        """The domain, which gives calibration inputs: workloads whose methods need more of it are refused as files."""
        domain = self.domain
        assert isinstance(domain, GivesCalibration)
        return domain

    @property
    def tuner(self) -> FineTunes[Workload]:
        """The domain, which can fine-tune."""
        domain = self.domain
        assert isinstance(domain, FineTunes)
        return domain

    def calibration(self, batch_size: int) -> Iterator[tuple[Tensor, ...]]:
        """Batches of representative positional inputs."""
        return self.calibrator.calibration(self.job, self.workspace.store, batch_size)

    def fine_tuning(self, batch_size: int) -> FineTuning | OwnTraining:
        """What quantization-aware training needs of the domain."""
        return self.tuner.fine_tuning(self.job, self.workspace.store, batch_size)

    @cached_property
    def made_from(self) -> dict[str, object]:
        """Everything that decides what this gives; goes into the digests of what is made from it."""
        workload = self.job.workload
        return {
            "checkpoint": self.job.checkpoint.digest,
            # Its data matter to calibration and to training, and its sizes to every model.
            "dataset": self.job.dataset.digest,
            "model": workload.model.model_dump(mode="json"),
            "example_inputs": workload.benchmark.model_dump(mode="json", include={"batch_size", "sequence_length"}),
            "torch": torch.__version__,
            "code": model_digest(self._blank(), workload.model, self.domain.build, self.domain.example_inputs),
        }

    def _blank(self) -> nn.Module:
        return self.domain.build(self.job.workload.model, self.job.dataset)

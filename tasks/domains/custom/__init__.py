"""Models of any kind: the user's own module, data and metric."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.domains.base import Domain, FineTunes, GivesCalibration, Proposal, Quality, Trains
from tasks.domains.custom.sections import CustomWorkload, FactoryData
from tasks.workload.base import FactorySpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.quantize.own_training import OwnTraining
    from tasks.refs import DatasetRef

_PREPROCESSING = "preprocessing.json"


class Custom(
    Domain[CustomWorkload, FactorySpec],
    GivesCalibration[CustomWorkload],
    Trains[CustomWorkload],
    FineTunes[CustomWorkload],
):
    """The domain ``custom``."""

    workload = CustomWorkload

    def prepare(self, workload: CustomWorkload, workspace: Workspace) -> DatasetRef:
        """Ask the user's code for the splits, or read the table; inputs are named as forward's parameters."""
        from tasks.checkpoint import build_blank
        from tasks.user_code import call_factory

        model = build_blank(lambda: call_factory(workload.model))
        if isinstance(workload.data, FactoryData):
            from tasks.domains.custom.factory_data import prepare_factory

            return prepare_factory(workload, workload.data, model, workspace)
        from tasks.domains.custom.table import prepare_table

        return prepare_table(workload, workload.data, model, workspace)

    def build(self, model: FactorySpec, dataset: DatasetRef) -> nn.Module:
        """Call the user's factory."""
        from tasks.user_code import call_factory

        return call_factory(model).eval()

    def check(self, job: Job[CustomWorkload], workspace: Workspace) -> None:
        """Call the model on its first test rows, and the metric on what it gives."""
        from tasks.checkpoint import load_state
        from tasks.domains.custom.evaluation import check_model

        model = self.build(job.workload.model, job.dataset)
        model.load_state_dict(load_state(job.checkpoint, workspace.store))
        check_model(job, model, workspace)

    def axes(self, workload: CustomWorkload, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Any number of rows, and what ``data.axes`` names besides."""
        from tasks.domains.custom.samples import open_axes

        return open_axes(_names(workload), tuple(examples))

    def example_inputs(
        self, workload: CustomWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """The first rows of the test split; with ``benchmark.sequence_length``, of that many steps."""
        from tasks.domains.custom.samples import example_rows, open_axes, read_description

        axes = open_axes(_names(workload), read_description(dataset, store).inputs)
        length = workload.benchmark.sequence_length
        return example_rows(dataset, axes, store, batch_size, (workload.steps, length) if length else None)

    def evaluate(self, job: Job[CustomWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """``evaluate.metric`` of the test split."""
        from tasks.domains.custom.evaluation import evaluate_custom

        return evaluate_custom(job, call, workspace, apart=apart)

    def calibration(
        self, job: Job[CustomWorkload], store: ArtifactStore, batch_size: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """The calibration split in the order in which it is stored; a collate function's batches as it made them."""
        from tasks.domains.custom.samples import load_samples

        batches = load_samples(job.dataset, "calibration", store).in_batches(batch_size)
        return (tuple(batch.inputs.values()) for batch in batches)

    def train(self, workload: CustomWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Call the user's ``train``."""
        from tasks.domains.custom.training import train_by_code

        return train_by_code(workload, dataset, workspace.store)

    def fine_tuning(self, job: Job[CustomWorkload], store: ArtifactStore, batch_size: int) -> OwnTraining:
        """Call the user's ``train`` on the prepared model."""
        from tasks.domains.custom.training import fine_tuning_by_code

        return fine_tuning_by_code(job, store)

    def cannot_tune(self, workload: CustomWorkload) -> str:
        """Where no callable trains."""
        return "" if workload.training else "[fine_tune] train names no callable"

    def propose(self, workload: CustomWorkload, workspace: Workspace) -> Proposal:
        """Choose a metric for such targets, and the axes whose lengths differ from batch to batch."""
        from tasks.domains.custom.proposal import axes_of, metric_for

        dataset = self.prepare(workload, workspace)
        axes = axes_of(dataset, workspace.store)
        metric = metric_for(dataset, workspace.store)
        return Proposal({"evaluate": {"metric": metric}, "data": {"axes": axes} if axes else {}})

    def write_resources(self, job: Job[CustomWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """``preprocessing.json`` of a table: its features, what standardizes them, and the classes."""
        from tasks.domains.custom.samples import read_description

        if isinstance(job.workload.data, FactoryData):
            return {}
        described = read_description(job.dataset, store).model_dump(mode="json", exclude={"collated"})
        document = {**described, "standardize": "(value - mean) / std for each feature, then float32"}
        (folder / _PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
        return {"preprocessing": _PREPROCESSING}


def _names(workload: CustomWorkload) -> Mapping[str, tuple[str, ...]]:
    return workload.data.axes if isinstance(workload.data, FactoryData) else {}

"""The selection split: data that a search uses to choose recipes, and that the gate does not use."""

from __future__ import annotations

from dataclasses import dataclass, replace

from storage.errors import InputError
from tasks.job import Job
from tasks.refs import DatasetRef
from tasks.workload.workload import Workload

_SPLITS = ("valid", "train", "calibration")
_SIZES = (256, 1024)


@dataclass(frozen=True)
class Selection:
    """A selection split, and the increasing numbers of samples for screening trials."""

    split: str
    samples: tuple[int, ...]

    @classmethod
    def of(cls, dataset: DatasetRef) -> Selection:
        """Choose the selection split; from a train split, use no more samples than the test split contains.

        Raises
        ------
        InputError
            The data set has only a test split.
        """
        available = [split for split in _SPLITS if dataset.samples(split)]
        if not available:
            raise InputError(
                f'A search needs a "valid", "train" or "calibration" split, but the data set has only these splits: '
                f"{', '.join(dataset.splits)}.",
                hint='Add a "valid" split to [data], or remove [search].',
            )
        split = available[0]
        size = dataset.samples(split)
        size = min(size, dataset.samples("test")) if split == "train" else size
        return cls(split, (*(smaller for smaller in _SIZES if smaller < size), size))

    def job(self, job: Job[Workload], samples: int) -> Job[Workload]:
        """Return a job that evaluates candidates on `samples` samples of this split."""
        dataset = job.dataset.model_copy(update={"judged_on": self.split, "at_most": samples})
        return replace(job, dataset=dataset)

"""The selection split: data that a search uses to choose recipes, and that the gate does not use."""

from __future__ import annotations

from dataclasses import dataclass, replace

from storage.errors import InputError
from tasks.extensions import METHODS
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
    def of(cls, dataset: DatasetRef, *, spare: str = "") -> Selection:
        """Choose the selection split; from a train split, use no more samples than the test split contains.

        `spare` is a split whose samples nothing else uses; it replaces a smaller ``valid`` split.

        Raises
        ------
        InputError
            The data set has only a test split.
        """
        usable = {split: size for split in _SPLITS if (size := dataset.samples(split))}
        if "train" in usable:
            usable["train"] = min(usable["train"], dataset.samples("test"))
        available = sorted(usable, key=lambda split: -usable[split] if split in ("valid", spare) else 0)
        if not available:
            raise InputError(
                f'A search needs a "valid", "train" or "calibration" split, but the data set has only these splits: '
                f"{', '.join(dataset.splits)}.",
                hint='Add a "valid" split to [data], or remove [search].',
            )
        split = available[0]
        size = usable[split]
        return cls(split, (*(smaller for smaller in _SIZES if smaller < size), size))

    def job(self, job: Job[Workload], samples: int) -> Job[Workload]:
        """Return a job that evaluates candidates on `samples` samples of this split."""
        dataset = job.dataset.model_copy(update={"judged_on": self.split, "at_most": samples})
        return replace(job, dataset=dataset)


def spare_split(workload: Workload) -> str:
    """Return ``"train"`` if that split neither trains weights nor calibrates recipes; otherwise, return ``""``."""
    methods = {recipe.method for recipe in workload.recipe} | set(workload.search.methods if workload.search else ())
    trains = workload.checkpoint.kind == "train" or any("fine-tuning" in METHODS[name].needs for name in methods)
    return "train" if workload.data.keeps_calibration_apart and not trains else ""

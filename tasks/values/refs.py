"""References to artifacts. Tasks exchange only references and `tasks.values.results`, never tensors or files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tasks.workload.recipe import CandidateName


class Frozen(BaseModel):
    """A small immutable value that is passed between tasks as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OfCandidate(Frozen):
    """A value about one candidate, with the two columns that name the candidate in tables."""

    recipe: str
    runtime: str

    @property
    def name(self) -> CandidateName:
        """Name of the candidate."""
        return CandidateName(self.recipe, self.runtime)


class ArtifactRef(Frozen):
    """An artifact in the store, identified by kind and digest."""

    kind: str
    digest: str


class DatasetRef(ArtifactRef):
    """A prepared data set: samples (or tokens) per split, number of classes, vocabulary size, and sample shape."""

    splits: dict[str, int]
    classes: int = 0
    vocabulary: int = 0
    sample_shape: tuple[int, ...] = ()
    calibration_digest: str = ""
    skipped: int = 0
    notes: tuple[str, ...] = ()
    tokens_per_sample: int = Field(default=1, exclude=True)  # above 1 if the splits are streams of tokens
    at_most: int = Field(default=0, exclude=True)  # limits the test split; 0 means all samples
    judged_on: str = Field(default="test", exclude=True)  # replaces the test split while a search selects recipes

    def samples(self, split: str) -> int:
        """Return a split's number of samples, or 0 if the split does not exist."""
        return math.ceil(self.splits.get(split, 0) / self.tokens_per_sample)

    def as_prepared(self) -> DatasetRef:
        """Return the data set with the complete test split."""
        return self.model_copy(update={"at_most": 0, "judged_on": "test"})


class CheckpointRef(ArtifactRef):
    """Float weights; ``notes`` lists accepted differences between the weights and the model."""

    parameters: int
    notes: tuple[str, ...] = ()


class Architecture(Frozen):
    """Description of a float model without its weights; ``folder`` is searched first for the user's code."""

    domain: str
    model: dict[str, JsonValue]
    folder: str
    dataset: DatasetRef


class ModuleCoverage(Frozen):
    """A leaf module; ``reason`` explains why the module was not quantized."""

    module: str
    type: str
    parameters: int
    quantized: bool
    reason: str = ""


class CandidateRef(ArtifactRef, OfCandidate):
    """A candidate: the result of one recipe for one runtime."""

    size_bytes: int  # as counted by the runtime
    coverage: tuple[ModuleCoverage, ...] = ()
    notes: tuple[str, ...] = ()  # where the runtime's tools quantize in another way than the recipe asks
    shared: dict[str, str] = {}  # digests of artifacts that several candidates share, by kind
    recipe_digest: str = ""
    source_digest: str = ""  # of the code that built the candidate

    @property
    def covered_share(self) -> float:
        """Fraction of the parameters that are in quantized modules; 0 for a model without parameters."""
        total = sum(module.parameters for module in self.coverage)
        return sum(module.parameters for module in self.coverage if module.quantized) / total if total else 0.0


def in_words(coverage: Iterable[ModuleCoverage], named: int = 5) -> Iterator[str]:
    """Yield one line for each distinct reason recorded for float modules; each line lists up to `named` modules."""
    floats = sorted((module for module in coverage if not module.quantized), key=lambda module: module.reason)
    for reason, modules in groupby(floats, key=lambda module: module.reason):
        names = [f"{module.module or 'the model'} ({module.type})" for module in modules]
        shown = names[:named] + [f"{len(names) - named} more"] * (len(names) > named)
        yield f"{', '.join(shown)}: {reason}"

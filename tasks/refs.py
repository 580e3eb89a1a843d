"""References to artifacts. Only these and `tasks.results` travel between tasks, never tensors or file contents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tasks.extensions import DOMAINS

if TYPE_CHECKING:
    from torch import nn


class Frozen(BaseModel):
    """A small immutable value that crosses task boundaries as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ArtifactRef(Frozen):
    """An artifact in the store, identified by kind and digest."""

    kind: str
    digest: str


class DatasetRef(ArtifactRef):
    """A prepared data set: samples (tokens for text) by split, numbers of classes and words, shape of a sample.

    ``calibration_digest`` is the SHA-256 of the list of calibration samples, or "". ``notes`` describe the preparation
    of the samples for readers of the report. With ``at_most``, the test split is a random sample of that size; with 0,
    it is complete.
    """

    splits: dict[str, int]
    classes: int = 0
    vocabulary: int = 0
    sample_shape: tuple[int, ...] = ()
    calibration_digest: str = ""
    skipped: int = 0
    notes: tuple[str, ...] = ()
    at_most: int = Field(default=0, exclude=True)


class CheckpointRef(ArtifactRef):
    """Float weights and the number of their scalars; ``notes`` list differences in the file that were accepted."""

    parameters: int
    notes: tuple[str, ...] = ()


class Architecture(Frozen):
    """A float model without its weights, in its domain's terms.

    ``model`` is the section of the workload file that describes it. ``folder`` is the workload file's folder, which is
    searched first for the user's code.
    """

    domain: str
    model: dict[str, JsonValue]
    folder: str
    dataset: DatasetRef

    def build(self) -> nn.Module:
        """Build the model with weights drawn from torch's global generator."""
        section = DOMAINS.workload(self.domain).parse_model(self.model, self.folder)
        return DOMAINS[self.domain].build(section, self.dataset)


class ModuleCoverage(Frozen):
    """Whether one leaf module was quantized, and the reason if it was not."""

    module: str
    type: str
    parameters: int
    quantized: bool
    reason: str = ""


class CandidateRef(ArtifactRef):
    """A candidate: the result of one recipe for one runtime, as `tasks.runtimes` makes and opens it.

    ``size_bytes`` is the serialized size as the runtime counts it. ``graph`` is the graph mode of torch that was used,
    "" if there is no choice. ``shared`` maps kinds to digests of artifacts that several candidates share.
    ``recipe_digest`` is the digest of the recipe, and ``source_digest`` of the code that made the candidate.
    """

    recipe: str
    runtime: str
    graph: str = ""
    size_bytes: int
    coverage: tuple[ModuleCoverage, ...] = ()
    shared: dict[str, str] = {}
    recipe_digest: str = ""
    source_digest: str = ""

    @property
    def name(self) -> str:
        """``recipe/runtime``."""
        return f"{self.recipe}/{self.runtime}"

    @property
    def covered_share(self) -> float:
        """Share of the parameters that lie in quantized modules."""
        return covered_share(self.coverage)


def covered_share(coverage: Sequence[ModuleCoverage]) -> float:
    """Return the share of the parameters that lie in quantized modules; 0 if there are no parameters."""
    total = sum(module.parameters for module in coverage)
    return sum(module.parameters for module in coverage if module.quantized) / total if total else 0.0

"""References to artifacts: with `tasks.results`, all that travels between tasks. Never tensors or file contents."""

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
    """An artifact in the store by kind and digest."""

    kind: str
    digest: str


class DatasetRef(ArtifactRef):
    """A prepared data set: samples (tokens for text) by split, numbers of classes and words, one sample's shape.

    ``calibration_digest`` is the SHA-256 of the list of calibration samples, or "". ``notes`` are what a reader should
    know about how the samples were prepared. With ``at_most``, the test split is read as a random sample of that size;
    0 reads all of it.
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
    """Float weights, with their number of scalars; ``notes`` say what was forgiven in somebody else's file."""

    parameters: int
    notes: tuple[str, ...] = ()


class Architecture(Frozen):
    """A float model without its weights, in its domain's terms.

    ``model`` is the section that describes it, and ``folder`` where its workload file was: the user's code is looked
    for there first.
    """

    domain: str
    model: dict[str, JsonValue]
    folder: str
    dataset: DatasetRef

    def build(self) -> nn.Module:
        """Build the model, its weights drawn from torch's global generator."""
        section = DOMAINS.workload(self.domain).parse_model(self.model, self.folder)
        return DOMAINS[self.domain].build(section, self.dataset)


class ModuleCoverage(Frozen):
    """Whether one leaf module was quantized, and why not where it was not."""

    module: str
    type: str
    parameters: int
    quantized: bool
    reason: str = ""


class CandidateRef(ArtifactRef):
    """A candidate: one recipe's result for one runtime, as `tasks.runtimes` makes and opens it.

    ``size_bytes`` is the serialized size, as its runtime counts it; ``graph`` the graph mode that was taken ("" where
    there is no choice); ``shared`` the digests, by kind, of artifacts that it shares with other candidates;
    ``recipe_digest`` and ``source_digest`` are those of the recipe and of the code that made it from its inputs.
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

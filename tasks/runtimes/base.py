"""The base class of runtimes. A runtime declares the specs that it supports, and names its maker, opener and checker.

A runtime's module imports nothing heavy, because workload files are validated against it. Its maker and its opener are
imported separately and on demand: a benchmark's process opens files, and must not load the tools that made them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, cast

from pydantic import Field, JsonValue

from storage.errors import QuantizationError
from tasks.machine import installed_version, require_installed
from tasks.quantize.spec import Limit, Spec, obstacle, spec_of
from tasks.refs import CandidateRef, Frozen, ModuleCoverage
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from storage.artifacts import ArtifactStore
    from tasks.outputs import Call
    from tasks.proofs import Operator
    from tasks.quantize.source import ModelSource

DOCUMENT = "candidate.json"
_WITH_AVX2 = ("x86", "fbgemm", "onednn")  # engines whose kernels need AVX2; they choose faster kernels at run time


@dataclass(frozen=True)
class CandidateFiles:
    """A candidate on disk: its own folder, and the folders of the artifacts that it shares, by kind."""

    folder: Path
    shared: Mapping[str, Path]

    @classmethod
    def find(cls, candidate: CandidateRef, store: ArtifactStore) -> CandidateFiles:
        """Look up a candidate in the store; raise `StoreError` if an artifact is missing."""
        shared = {kind: store.path(kind, digest) for kind, digest in candidate.shared.items()}
        return cls(store.path(candidate.kind, candidate.digest), shared)

    def recipe(self) -> Recipe:
        """Return the candidate's recipe."""
        return Recipe.model_validate(self.made().recipe)

    def spec(self) -> Spec:
        """Return the spec of the candidate's recipe."""
        return spec_of(self.recipe())

    def made(self) -> Made:
        """Read ``candidate.json``.

        Raises
        ------
        QuantizationError
            This version cannot read a candidate from the folder.
        """
        try:
            return Made.model_validate_json((self.folder / DOCUMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise QuantizationError(
                f"This version cannot read a candidate from {self.folder}: {error}.", hint="Run the night again."
            ) from error


class Made(Frozen):
    """Facts about a candidate besides the runtime's own files, stored as ``candidate.json``.

    ``size_bytes`` is the serialized size as the runtime counts it; ``recipe`` is the recipe as JSON.
    """

    size_bytes: int
    coverage: tuple[ModuleCoverage, ...] = ()
    graph: str = ""
    recipe: dict[str, JsonValue] = Field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """A candidate ready to be called.

    ``scope`` prepares the process for calls (for example, sets the quantized engine). It surrounds many calls and is
    not timed. Calling the object itself enters the scope for one call.
    """

    call: Call
    scope: Callable[[], AbstractContextManager[None]] = nullcontext

    def __call__(self, *inputs: Tensor) -> object:
        """Call the model once."""
        with self.scope():
            return self.call(*inputs)


class Maker(ABC):
    """Makes a runtime's files."""

    def environment(self) -> dict[str, object]:
        """Return properties of this machine that affect the files, besides versions of distributions."""
        return {}

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Find or make the artifacts that this runtime shares with others; return their digests by kind."""
        return {}

    @abstractmethod
    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Write the runtime's files into a folder.

        Raises
        ------
        QuantizationError
            The spec cannot be applied to this model, or the result has wrong or non-finite outputs.
        """


class Opener(ABC):
    """Opens the files that a `Maker` wrote."""

    @abstractmethod
    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Open files for calls with torch tensors on `threads` threads."""

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Profile the operators of `calls` calls with the runtime's own profiler; return [] if it has none.

        `opened` comes from `open` on the same files; a profiler that must be enabled beforehand opens them again.
        """
        return []

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Open the same quantized model with kernels that do not saturate; return None if there are none."""
        return None


class Runtime(ABC):
    """One way to execute models.

    Without a ``checker``, files are measured and judged, but never promoted. A checker is a module that defines
    ``open_model(files, manifest)``, which opens a bundle's files as a callable from tensors to tensors. A tensor is its
    dtype's name, its shape and its values as bytes in C order. The module's text is copied into the bundle's
    ``verify.py``, so it imports nothing from this project. ``usage`` is a Jinja template, over the manifest ``m``, of
    Python code that opens a bundle's files.
    """

    makes: ClassVar[str]  # "module:class" of its `Maker`
    opens: ClassVar[str]  # "module:class" of its `Opener`
    checker: ClassVar[str] = ""  # "module"
    limits: ClassVar[tuple[Limit, ...]] = ()  # the specs that it supports
    extra: ClassVar[str] = ""  # this project's extra that installs the runtime; "" if it is always installed
    distributions: ClassVar[tuple[str, ...]] = ()  # must be installed; their versions are part of the digest
    compiles: ClassVar[bool] = False  # whether making a candidate takes minutes
    runs_engine: ClassVar[bool] = False  # whether torch's quantized engine provides the kernels
    rounds_per_call: ClassVar[bool] = True  # whether dynamic ranges are taken from all rows of a call
    main_file: ClassVar[str] = ""  # the file that a program opens, if there are several
    usage: ClassVar[str] = ""
    caution: ClassVar[str] = ""  # a warning for users who open the files
    not_reproducible: ClassVar[dict[str, str]] = {}  # by file name, why remaking the file gives other bytes
    # Tolerated distance from the reference, as a share of the range. Without saturation, torch's reference, which
    # rounds at other places, is off by up to 0.015 (python -m benchmarks.proof).
    saturation_noticed: ClassVar[float] = 0.02

    def maker(self) -> Maker:
        """Import and create the runtime's maker."""
        return cast(Maker, resolve_name(self.makes)())

    def opener(self) -> Opener:
        """Import and create the runtime's opener."""
        return cast(Opener, resolve_name(self.opens)())

    @property
    def hands_over(self) -> bool:
        """Whether the runtime's files can be deployed."""
        return bool(self.checker)

    def obstacle(self, recipe: Recipe) -> str:
        """Return why the runtime does not support a recipe, "" if it does."""
        return obstacle(spec_of(recipe), self.limits)

    def engine(self, recipe: Recipe) -> str | None:
        """Return the recipe's quantized engine, or None if the runtime does not use torch's engines."""
        return spec_of(recipe).engine if self.runs_engine else None

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """Return the instruction sets that the files need to run."""
        return ["avx2"] if self.engine(recipe) in _WITH_AVX2 else []

    def couples_rows(self, recipe: Recipe) -> bool:
        """Return whether a candidate's outputs for a row depend on the other rows of the call."""
        return self.rounds_per_call and spec_of(recipe).couples_rows

    def require_installed(self, name: str) -> None:
        """Raise `UnavailableError`, with the command to run, if the runtime's libraries are not installed."""
        require_installed(f'The runtime "{name}"', self.distributions, self.extra or name)

    def environment(self) -> dict[str, object]:
        """Return the versions and properties of this machine that affect the files, for the candidate's digest."""
        versions = {distribution: installed_version(distribution) for distribution in self.distributions}
        return {**versions, **self.maker().environment()}

"""What a runtime is: it says which specs it carries out, and names what makes their files, opens and checks these.

A runtime's module imports nothing heavy, because workload files are validated against it. Its maker and its opener are
imported when they are needed, and separately: a benchmark's process opens files and must not hold the tools that made
them.
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
_WITH_AVX2 = ("x86", "fbgemm", "onednn")  # engines whose kernels need it; faster ones are chosen at run time


@dataclass(frozen=True)
class CandidateFiles:
    """A candidate on disk: its own folder, and those of the artifacts that it shares, by kind."""

    folder: Path
    shared: Mapping[str, Path]

    @classmethod
    def find(cls, candidate: CandidateRef, store: ArtifactStore) -> CandidateFiles:
        """Look a candidate up in the store; `StoreError` where it, or what it shares, is not there."""
        shared = {kind: store.path(kind, digest) for kind, digest in candidate.shared.items()}
        return cls(store.path(candidate.kind, candidate.digest), shared)

    def recipe(self) -> Recipe:
        """Return the recipe that the candidate was made by."""
        return Recipe.model_validate(self.made().recipe)

    def spec(self) -> Spec:
        """Return what the candidate's recipe asked for."""
        return spec_of(self.recipe())

    def made(self) -> Made:
        """Read ``candidate.json``.

        Raises
        ------
        QuantizationError
            The folder holds no candidate that this version can read.
        """
        try:
            return Made.model_validate_json((self.folder / DOCUMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise QuantizationError(
                f"{self.folder} holds no candidate that this version can read: {error}", hint="Run the night again."
            ) from error


class Made(Frozen):
    """What making a candidate gave besides the runtime's own files; kept as ``candidate.json``.

    ``size_bytes`` is the serialized size as the runtime counts it, ``recipe`` the recipe as JSON.
    """

    size_bytes: int
    coverage: tuple[ModuleCoverage, ...] = ()
    graph: str = ""
    recipe: dict[str, JsonValue] = Field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """A candidate ready to be called.

    ``scope`` sets what calls need of the process (the quantized engine, say), around many calls and outside of what is
    timed; calling the object itself enters it for one call.
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
        """Say what of this machine decides the files, besides the versions of the runtime's distributions."""
        return {}

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Find or make the artifacts that this runtime shares with others; their digests by kind."""
        return {}

    @abstractmethod
    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Write the runtime's files into a folder.

        Raises
        ------
        QuantizationError
            The spec cannot be carried out on this model, or the result computes something else or nothing finite.
        """


class Opener(ABC):
    """Opens what a `Maker` wrote."""

    @abstractmethod
    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Open files for calls with torch tensors on `threads` threads."""

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Report what the operators of `calls` calls took, by the runtime's own profiler; [] if it has none.

        `opened` is what `open` gave of the same files; a profiler that must be asked for beforehand opens them again.
        """
        return []

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Open the same quantized arithmetic computed where nothing saturates; None if that cannot be had."""
        return None


class Runtime(ABC):
    """One way to execute models.

    Files without a ``checker`` cannot be deployed: they are measured and judged, but never promoted. A checker is a
    module that defines ``open_model(files, manifest)``: from a bundle's files by name and its manifest it gives a
    callable from tensors to tensors, each as its dtype's name, its shape and its values as bytes in C order. Its text
    is copied into the bundle's ``verify.py``, so it imports nothing of this project. ``usage`` is how a program opens
    the files of a bundle: Python with the manifest's values, a Jinja template over ``m``.
    """

    makes: ClassVar[str]  # "module:class" of its `Maker`
    opens: ClassVar[str]  # "module:class" of its `Opener`
    checker: ClassVar[str] = ""  # "module"
    limits: ClassVar[tuple[Limit, ...]] = ()  # which specs it carries out
    extra: ClassVar[str] = ""  # of this project, which installs what the runtime needs; "" if it is always there
    distributions: ClassVar[tuple[str, ...]] = ()  # what must be installed, and whose versions decide what is made
    compiles: ClassVar[bool] = False  # whether making a candidate takes minutes
    runs_engine: ClassVar[bool] = False  # whether the kernels are those of torch's quantized engine
    rounds_per_call: ClassVar[bool] = True  # whether dynamic ranges are taken from all rows of a call
    main_file: ClassVar[str] = ""  # of several files, the one that a program opens
    usage: ClassVar[str] = ""
    caution: ClassVar[str] = ""  # what to know before the files are opened
    not_reproducible: ClassVar[dict[str, str]] = {}  # why making a file anew gives other bytes, by file name
    # How far, as a share of the range, outputs may be off from the reference's that rounds at other places: torch's is
    # off by up to 0.015 (python -m benchmarks.proof).
    saturation_noticed: ClassVar[float] = 0.02

    def maker(self) -> Maker:
        """Import what makes the files."""
        return cast(Maker, resolve_name(self.makes)())

    def opener(self) -> Opener:
        """Import what opens the files."""
        return cast(Opener, resolve_name(self.opens)())

    @property
    def hands_over(self) -> bool:
        """Whether the files can be deployed."""
        return bool(self.checker)

    def obstacle(self, recipe: Recipe) -> str:
        """Return why the runtime cannot carry a recipe out, "" if it can."""
        return obstacle(spec_of(recipe), self.limits)

    def engine(self, recipe: Recipe) -> str | None:
        """Return torch's quantized engine, if its kernels run."""
        return spec_of(recipe).engine if self.runs_engine else None

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """Return the instruction sets without which the files do not run at all."""
        return ["avx2"] if self.engine(recipe) in _WITH_AVX2 else []

    def couples_rows(self, recipe: Recipe) -> bool:
        """Report whether what a candidate computes for a row depends on the other rows of the call."""
        return self.rounds_per_call and spec_of(recipe).couples_rows

    def require_installed(self, name: str) -> None:
        """Refuse a runtime whose libraries are missing: the `UnavailableError` says what installs them."""
        require_installed(f'The runtime "{name}"', self.distributions, self.extra or name)

    def environment(self) -> dict[str, object]:
        """Say what of this machine and its libraries decides the files: goes into the candidate's digest."""
        versions = {distribution: installed_version(distribution) for distribution in self.distributions}
        return {**versions, **self.maker().environment()}

"""What a runtime is: it makes a candidate's files, opens them as a callable, and gives bundles their checker.

A runtime's module imports nothing heavy by itself, because workload files are validated against it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, JsonValue

from storage.documents import JsonObject
from storage.errors import QuantizationError
from tasks.machine import installed_version, require_installed
from tasks.refs import CandidateRef, Frozen, ModuleCoverage
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from storage.artifacts import ArtifactStore
    from tasks.outputs import Call
    from tasks.quantize.source import ModelSource
    from tasks.runtimes.operators import Operator

DOCUMENT = "candidate.json"
_EXACT = "qnnpack"

# A tensor without a library: its dtype's name, its shape, and its values as bytes in C order.
RawTensor = tuple[str, list[int], bytes]
RawCall = Callable[[list[RawTensor]], list[RawTensor]]
# From a bundle's files by name and its manifest.
Checker = Callable[[dict[str, bytes], JsonObject], RawCall]


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
        """The recipe that the candidate was made by."""
        return Recipe.model_validate(self.made().recipe)

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

    ``size_bytes`` is the serialized size as the runtime counts it, ``coverage`` what became of each module, ``graph``
    the graph mode that was taken, ``recipe`` the recipe as JSON.
    """

    size_bytes: int
    coverage: tuple[ModuleCoverage, ...] = ()
    graph: str = ""
    recipe: dict[str, JsonValue] = Field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """A candidate ready to be called.

    ``scope`` sets what the calls need of the process (the quantized engine, say). It is entered around many calls,
    outside of what is timed; calling the object itself enters it for one call.
    """

    call: Call
    scope: Callable[[], AbstractContextManager[None]] = nullcontext

    def __call__(self, *inputs: Tensor) -> object:
        """Call the model once."""
        with self.scope():
            return self.call(*inputs)


class Runtime(ABC):
    """One way to execute models.

    Files that cannot be deployed (``hands_over``) are measured and judged, but never promoted. ``usage`` is how a
    program opens the files of a bundle: Python with the manifest's values, a Jinja template over ``m``.
    """

    extra: ClassVar[str] = ""  # of this project, which installs what the runtime needs; "" where it is always there
    distributions: ClassVar[tuple[str, ...]] = ()  # what must be installed, and whose versions decide what is made
    hands_over: ClassVar[bool] = True
    compiles: ClassVar[bool] = False  # whether making a candidate takes minutes
    main_file: ClassVar[str] = ""  # of several files, the one that a program opens
    usage: ClassVar[str] = ""
    caution: ClassVar[str] = ""  # what to know before the files are opened
    not_reproducible: ClassVar[dict[str, str]] = {}  # why making a file anew gives other bytes, by file name
    # How far, as a share of the range, outputs may be off from the reference's that rounds at other places: torch's is
    # off by up to 0.015 (python -m benchmarks.proof).
    saturation_noticed: ClassVar[float] = 0.02

    def checker(self) -> Checker | None:
        """What opens the runtime's files of a bundle; None where there are none to hand over.

        The function's source is copied into the bundle's ``verify.py``, so it imports all that it uses and calls
        nothing of this project.
        """
        return None

    def obstacle(self, recipe: Recipe) -> str:
        """Why the runtime cannot carry a recipe out, "" where it can."""
        return ""

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """Instruction sets without which the files do not run at all."""
        return []

    def engine(self, recipe: Recipe) -> str | None:
        """torch's quantized engine, where its kernels run."""
        return None

    def couples_rows(self, recipe: Recipe) -> bool:
        """Whether what a candidate computes for a row depends on the other rows of the call; as the method says."""
        from tasks.extensions import METHODS

        return METHODS[recipe.method].couples_rows(recipe)

    def require_installed(self, name: str) -> None:
        """Refuse a runtime whose libraries are missing: the `UnavailableError` says what installs them."""
        require_installed(f'The runtime "{name}"', self.distributions, self.extra or name)

    def environment(self) -> dict[str, object]:
        """What of this machine and its libraries decides the files: goes into the candidate's digest."""
        return {distribution: installed_version(distribution) for distribution in self.distributions}

    def shared(self, source: ModelSource, recipe: Recipe) -> dict[str, str]:
        """Find or make the artifacts that this runtime shares with others; their digests by kind."""
        return {}

    @abstractmethod
    def make(self, source: ModelSource, recipe: Recipe, folder: Path) -> Made:
        """Write the runtime's files into a folder.

        Raises
        ------
        QuantizationError
            The recipe cannot be carried out on this model, or the result computes something else or nothing finite.
        """

    @abstractmethod
    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Open what `make` wrote, for calls with torch tensors on `threads` threads."""

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """What the operators of `calls` calls took, by the runtime's own profiler; [] where it has none.

        `opened` is what `open` gave of the same files; where a profiler must be asked for beforehand, they are opened
        again.
        """
        return []

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """The same quantized arithmetic computed where nothing saturates; None where that cannot be had."""
        return None


class TorchRuntime(Runtime):
    """A runtime that executes the converted torch module in one form or another."""

    distributions = ("torch",)

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """What the engine's kernels need; faster ones (AVX-512, VNNI) are chosen at run time where they exist."""
        return ["avx2"] if recipe.quantized_engine in ("x86", "fbgemm", "onednn") else []

    def engine(self, recipe: Recipe) -> str | None:
        """The recipe's, None for a float model."""
        return recipe.quantized_engine

    def shared(self, source: ModelSource, recipe: Recipe) -> dict[str, str]:
        """The converted module."""
        from tasks.quantize.converted import KIND, find_or_convert

        return {KIND: find_or_convert(source, recipe).name}

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the module, packed for the recipe's engine; torch's intra-op threads belong to the process."""
        import torch

        from tasks.extensions import METHODS

        recipe = files.recipe()
        scope = partial(METHODS[recipe.method].running, recipe)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        with scope():
            return Opened(self.load(files), scope)

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """By torch's profiler."""
        from tasks.runtimes.torch_profile import profile_torch

        with opened.scope():
            return profile_torch(partial(opened.call, *inputs), calls)

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """The converted module under QNNPACK, whose kernels add products up in 32 bits on every processor.

        It rounds at other places than the other engines.
        """
        import torch

        from tasks.quantize.converted import KIND, open_converted
        from tasks.quantize.engine import quantized_engine

        if files.recipe().quantized_engine is None or _EXACT not in torch.backends.quantized.supported_engines:
            return None
        scope = partial(quantized_engine, _EXACT)
        with scope():
            return Opened(open_converted(files.shared[KIND]), scope)

    @abstractmethod
    def load(self, files: CandidateFiles) -> Call:
        """Load what `make` wrote; the quantized engine is set."""

"""Base class of runtimes. A runtime declares the specs that it supports, and names its maker, opener and checker.

A runtime's module does not import large libraries, because nightquant imports it to validate a workload file. The maker
and the opener are imported separately, because a benchmark process must not load the tools that build files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tasks.environment.machine import installed_version, require_installed
from tasks.quantize.spec import Limit, Spec, limit, obstacle, spec_of
from tasks.values.refs import CandidateRef, Frozen, ModuleCoverage
from tasks.workload.recipe import RUNTIMES, Recipe, RuntimeTraits

if TYPE_CHECKING:
    from torch import Tensor

    from storage.artifacts import ArtifactStore
    from tasks.data.outputs import Call
    from tasks.quantize.source import ModelSource
    from tasks.values.proofs import Operator

DOCUMENT = "candidate.json"
# Engines that require AVX2, and that choose faster kernels at run time if the processor supports them.
_WITH_AVX2 = ("x86", "fbgemm", "onednn")

# Needs and limits that all runtimes for ONNX files share; the tools of these runtimes ignore a recipe's engine.
EXPORTING = ("onnx", "onnxscript", "onnx-ir")  # distributions needed to export a model to ONNX
OTHER_METHOD = 'it does not support the "{method}" method'
_TORCHS_OWN = "it uses neither torch's memory formats nor torch's oneDNN kernels"
WITHOUT_TORCH = (limit("memory_format", "contiguous", reason=_TORCHS_OWN), limit("onednn", True, reason=_TORCHS_OWN))
WITHOUT_GROUPS = limit(
    "granularities", "tensor", "channel", reason="its kernels have no 4-bit weights: use linear_bits = 8, or executorch"
)
EXPORTED_LIMITS = (
    limit("activations", "float", "dynamic-per-tensor", "static", reason=OTHER_METHOD),
    *WITHOUT_TORCH,
)


@dataclass(frozen=True)
class CandidateFiles:
    """A candidate in the store: its own folder, and the folders of shared artifacts, keyed by kind."""

    folder: Path
    shared: Mapping[str, Path]

    @classmethod
    def find(cls, candidate: CandidateRef, store: ArtifactStore) -> CandidateFiles:
        """Look up a candidate in the store; raise `StoreError` if an artifact is missing."""
        shared = {kind: store.path(kind, digest) for kind, digest in candidate.shared.items()}
        return cls(store.path(candidate.kind, candidate.digest), shared)

    def spec(self) -> Spec:
        """Return the spec of the candidate's recipe."""
        spec = self.made().spec
        assert spec is not None, "every candidate is stored with its spec"
        return spec

    def made(self) -> Made:
        """Read ``candidate.json``."""
        return Made.model_validate_json((self.folder / DOCUMENT).read_text(encoding="utf-8"))


class Made(Frozen):
    """Properties of a candidate, stored as ``candidate.json`` next to the runtime's files."""

    size_bytes: int  # serialized size, as measured by the runtime
    coverage: tuple[ModuleCoverage, ...] = ()
    notes: tuple[str, ...] = ()  # where the tools quantize in another way than the recipe asks
    spec: Spec | None = None


@dataclass(frozen=True)
class Opened:
    """A candidate that is ready to be called, also by several threads at the same time.

    ``scope`` prepares the process for calls, for example by setting the quantized engine. One scope surrounds many
    calls, and entering it is not timed. Calling the object itself enters the scope for that call only.
    """

    call: Call
    scope: Callable[[], AbstractContextManager[None]] = nullcontext

    def __call__(self, *inputs: Tensor) -> object:
        """Call the model once."""
        with self.scope():
            return self.call(*inputs)


class Maker(ABC):
    """An object that builds a runtime's files."""

    def environment(self) -> dict[str, object]:
        """Return properties of this host that affect the built files."""
        return {}

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Find or build the artifacts that runtimes share; return their digests, keyed by kind."""
        return {}

    @abstractmethod
    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Write the runtime's files into a folder; raise `QuantizationError` if the spec cannot be applied."""


class Opener(ABC):
    """An object that opens the files that a `Maker` wrote."""

    @abstractmethod
    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Open a candidate's files; calls take torch tensors and run on `threads` threads."""

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Profile the operators in `calls` calls with the runtime's profiler; return ``[]`` if there is no profiler."""
        return []

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Open the quantized model with kernels that do not saturate; return None if such kernels do not exist."""
        return None


class Runtime(RuntimeTraits):
    """A way to execute models.

    Each runtime is a package: the class and its limits in ``__init__``, the `Maker` in ``make``, the `Opener` in
    ``open`` and, unless candidates are only measured and never promoted, ``check``. That module defines
    ``open_model(files, manifest)``, which returns a function from tensors to tensors. There, a tensor is a tuple of the
    dtype's name, the shape, and the values as bytes in C order. The module's code is copied into the bundle's
    ``verify.py``, so it must not import nightquant. ``usage`` is a Jinja template for Python code that opens a bundle's
    files; the variable ``m`` is the manifest.
    """

    limits: ClassVar[tuple[Limit, ...]] = ()  # limits on the specs that the runtime supports
    extra: ClassVar[str] = ""  # nightquant's extra that installs the runtime, or "" for a runtime without an extra
    compiles: ClassVar[bool] = False  # whether building a candidate takes minutes
    runs_engine: ClassVar[bool] = False  # whether torch's quantized engine provides the kernels
    architectures: ClassVar[tuple[str, ...]] = ()  # that run the files, if not only this host's
    main_file: ClassVar[str] = ""  # the file that a program opens, if a bundle has several files
    usage: ClassVar[str] = ""
    caution: ClassVar[str] = ""  # a warning for users who open the files
    not_reproducible: ClassVar[dict[str, str]] = {}  # causes of differences in rebuilt files, keyed by file name
    # Tolerated difference from the reference, as a fraction of the outputs' range: torch's reference kernels round at
    # different points, so outputs differ by up to 0.015 without saturation (``python -m benchmarks.proof``).
    saturation_noticed: ClassVar[float] = 0.02

    @abstractmethod
    def maker(self) -> Maker:
        """Import and create the runtime's maker."""

    @abstractmethod
    def opener(self) -> Opener:
        """Import and create the runtime's opener."""

    def module(self, part: Literal["make", "open", "check"]) -> str:
        """Return the name of a module in the runtime's package."""
        return f"{type(self).__module__}.{part}"

    @classmethod
    def obstacle(cls, recipe: Recipe) -> str:
        """Return the first of the runtime's limits that the recipe's spec exceeds, or ""."""
        return obstacle(spec_of(recipe), cls.limits)

    def engine(self, recipe: Recipe) -> str | None:
        """Return the recipe's quantized engine, or None if the runtime does not use torch's engines."""
        return spec_of(recipe).engine if self.runs_engine else None

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """Return the instruction sets that are required to run the files."""
        return ["avx2"] if self.engine(recipe) in _WITH_AVX2 else []

    def require_installed(self, name: str) -> None:
        """Raise `UnavailableError` if the runtime's libraries are not installed."""
        require_installed(f'The "{name}" runtime', self.distributions, self.extra or name)

    def environment(self) -> dict[str, object]:
        """Return the versions and host properties that affect the files; the candidate's digest includes them."""
        versions = {distribution: installed_version(distribution) for distribution in self.distributions}
        return {**versions, **self.maker().environment()}


def runtime_named(name: str) -> Runtime:
    """Import and create a registered runtime."""
    runtime = RUNTIMES[name]()
    assert isinstance(runtime, Runtime)
    return runtime

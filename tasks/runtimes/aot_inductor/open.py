"""Open and profile compiled packages without importing the compiler, which would take a second in each process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tasks.data.outputs import Call
from tasks.quantize.operators import load_libraries, portable_kernels
from tasks.runtimes.base import CandidateFiles, Opened, Opener
from tasks.runtimes.eager.open import profile_torch
from tasks.values.proofs import Operator

MODEL = "model.pt2"


class AotOpener(Opener):
    """An opener for compiled packages."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the package; its loops and oneDNN's kernels use torch's intra-op threads."""
        torch.set_num_threads(threads)
        load_libraries(files.folder)
        return Opened(open_package(files.folder / MODEL))

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Open a package with nightquant's portable kernels; return None if the package uses torch's operators."""
        own = files.spec().operators == "own"
        return Opened(self.open(files, threads).call, portable_kernels) if own else None

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Profile with torch's and oneDNN's profilers, and attribute the remaining time to the package's own loops."""
        return profile_torch(partial(opened.call, *inputs), calls)


def open_package(path: Path) -> Call:
    """Load a package as a callable that takes tensors.

    ``torch._inductor.aoti_load_package`` creates the same loader, but imports and runs the compiler, and returns a
    function that parses descriptions of inputs and outputs in every call.
    """
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path))
    structure = pytree.treespec_loads(loader.get_call_spec()[1])

    def call(*inputs: Tensor) -> object:
        return pytree.tree_unflatten(loader.run(list(inputs)), structure)

    return call

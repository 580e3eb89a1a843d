"""Converted torch modules as torch itself runs them: shared, opened, profiled, and compared with exact arithmetic."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tasks.outputs import Call
from tasks.proofs import Operator
from tasks.quantize.converted import KIND, Structure, find_or_convert, open_converted
from tasks.quantize.engine import quantized_engine, running
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec
from tasks.runtimes.base import CandidateFiles, Made, Maker, Opened, Opener
from tasks.runtimes.torch_profile import profile_torch

_EXACT = "qnnpack"


def use_threads(threads: int) -> None:
    """Set torch's intra-op threads, which belong to the process."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


class TorchMaker(Maker):
    """Shares the converted module."""

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Find or make the converted module."""
        return {KIND: find_or_convert(source, spec).name}


class TorchOpener(Opener):
    """Opens the converted module in one form or another."""

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the module, packed for the spec's engine."""
        scope = partial(running, files.spec())
        use_threads(threads)
        with scope():
            return Opened(self.load(files), scope)

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """Ask torch's profiler."""
        with opened.scope():
            return profile_torch(partial(opened.call, *inputs), calls)

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Open the converted module under QNNPACK, whose kernels add products up in 32 bits on every processor.

        It rounds at other places than the other engines.
        """
        if files.spec().engine is None or _EXACT not in torch.backends.quantized.supported_engines:
            return None
        scope = partial(quantized_engine, _EXACT)
        with scope():
            return Opened(open_converted(files.shared[KIND]), scope)

    @abstractmethod
    def load(self, files: CandidateFiles) -> Call:
        """Load what was made; the quantized engine is set."""


class EagerMaker(TorchMaker):
    """Needs no files of its own."""

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Write nothing; the size is that of the state dict as ``torch.save`` writes it."""
        structure = Structure.read(find_or_convert(source, spec))
        return Made(size_bytes=structure.size_bytes, coverage=structure.coverage, graph=structure.graph)


class EagerOpener(TorchOpener):
    """Opens the converted module itself."""

    def load(self, files: CandidateFiles) -> Call:
        """Rebuild the module."""
        return open_converted(files.shared[KIND])

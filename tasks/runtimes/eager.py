"""Runtime ``eager``: the converted module called from Python, operator by operator.

There is no file that a deploy team could run without this project, so it is measured but never handed over.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.runtimes.base import CandidateFiles, Made, Opened, TorchRuntime

if TYPE_CHECKING:
    from tasks.quantize.source import ModelSource
    from tasks.workload.recipe import Recipe


class Eager(TorchRuntime):
    """Needs nothing but the converted module, which it shares."""

    hands_over = False

    def make(self, source: ModelSource, recipe: Recipe, folder: Path) -> Made:
        """Write nothing; the size is that of the state dict as ``torch.save`` writes it."""
        structure = self.structure(source, recipe)
        return Made(size_bytes=structure.size_bytes, coverage=structure.coverage, graph=structure.graph)

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Rebuild the module."""
        from tasks.quantize.converted import KIND, open_converted
        from tasks.quantize.methods import METHODS
        from tasks.quantize.structure import Structure

        folder = files.shared[KIND]
        recipe = Structure.read(folder).recipe
        scope = partial(METHODS[recipe.method].running, recipe)
        self.use_threads(threads)
        with scope():
            return Opened(open_converted(folder), scope)

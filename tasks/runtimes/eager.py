"""Runtime ``eager``: the converted module called from Python, operator by operator.

There is no file that a deploy team could run without this project, so it is measured but never handed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.runtimes.base import CandidateFiles, Made, TorchRuntime

if TYPE_CHECKING:
    from tasks.outputs import Call
    from tasks.quantize.source import ModelSource
    from tasks.workload.recipe import Recipe


class Eager(TorchRuntime):
    """Needs nothing but the converted module, which it shares."""

    hands_over = False

    def make(self, source: ModelSource, recipe: Recipe, folder: Path) -> Made:
        """Write nothing; the size is that of the state dict as ``torch.save`` writes it."""
        from tasks.quantize.converted import Structure, find_or_convert

        structure = Structure.read(find_or_convert(source, recipe))
        return Made(size_bytes=structure.size_bytes, coverage=structure.coverage, graph=structure.graph)

    def load(self, files: CandidateFiles) -> Call:
        """Rebuild the module."""
        from tasks.quantize.converted import KIND, open_converted

        return open_converted(files.shared[KIND])

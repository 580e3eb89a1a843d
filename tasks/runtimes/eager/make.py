"""Share converted torch modules with the other runtimes."""

from __future__ import annotations

from pathlib import Path

from tasks.quantize.converted import KIND, Structure, find_or_convert
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec
from tasks.runtimes.base import Made, Maker


class EagerMaker(Maker):
    """A maker that shares the converted module and does not write files of its own."""

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Find or build the converted module."""
        return {KIND: find_or_convert(source, spec).name}

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Return the module's properties; ``size_bytes`` is the size of a ``torch.save`` file of the state dict."""
        structure = Structure.read(find_or_convert(source, spec))
        return Made(size_bytes=structure.size_bytes, coverage=structure.coverage)

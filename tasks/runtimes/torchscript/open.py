"""Open TorchScript files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tasks.data.outputs import Call
from tasks.quantize.engine import without_deprecations
from tasks.runtimes.base import CandidateFiles
from tasks.runtimes.eager.open import EagerOpener

MODEL = "model.ts"


class ScriptOpener(EagerOpener):
    """An opener for TorchScript files."""

    def load(self, files: CandidateFiles) -> Call:
        """Load the file."""
        return read_script(files.folder / MODEL)


def read_script(path: Path) -> nn.Module:
    """Load a file from `write_script`, and pack the weights for the current quantized engine."""
    with without_deprecations():
        script: nn.Module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    return script

"""A user's code as tests need it: written beside a workload file in a folder of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from tasks.workload import Workload

CODE = """
import torch
from torch import nn

class Linear(nn.Module):
    def __init__(self, features=3, outputs=2):
        super().__init__()
        self.layer = nn.Linear(features, outputs)

    def forward(self, rows):
        return self.layer(rows)

def splits(rows=40, features=3):
    generator = torch.Generator().manual_seed(0)
    items = [(torch.randn(features, generator=generator), index % 2) for index in range(rows)]
    return {"train": items[:10], "calibration": items[10:20], "test": items[20:]}

def train(model, splits, seed, epochs):
    with torch.no_grad():
        model.layer.weight.fill_(seed + epochs + len(splits["train"]))
"""


def write(folder: Path, code: str = CODE, name: str = "own_code") -> str:
    """Write the module into the folder; give its name."""
    (folder / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
    return name


def own(folder: Path, **changes: Any) -> Workload:
    """A workload beside ``own_code.py``; `changes` are sections."""
    document = {
        "schema_version": 1,
        "name": "own",
        "description": "",
        "domain": "custom",
        "data": {"kind": "factory", "factory": "own_code:splits"},
        "model": {"kind": "factory", "factory": "own_code:Linear"},
        "checkpoint": {"kind": "seeded"},
        "evaluate": {"metric": "accuracy"},
        "recipe": [{"name": "float", "method": "none"}],
    }
    return Workload.model_validate(document | changes, context={"folder": str(folder)})

"""A tiny word language model and its workload, and what tests of dynamic recipes ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from tasks.data.outputs import Call, tensors_of
from tasks.workload import Workload
from tests.tasks.pipeline import build_model, prepare

RECIPES: dict[str, dict[str, Any]] = {
    "float": {"method": "none"},
    "float-channels-last": {"method": "none", "memory_format": "channels-last"},
    "float-without-onednn": {"method": "none", "onednn": False},
    "int8": {"method": "dynamic"},
    "int8-per-channel": {"method": "dynamic", "per_channel": True},
    "int8-embedding8": {"method": "dynamic", "embedding_bits": 8},
    "int8-embedding4": {"method": "dynamic", "embedding_bits": 4},
    "float16": {"method": "dynamic", "dtype": "float16"},
    "int8-onednn": {"method": "dynamic", "engine": "onednn"},
    "int8-linear-only": {"method": "dynamic", "modules": ["Linear"]},
    "int8-but-decoder": {"method": "dynamic", "exclude": ["decoder"]},
}

WORDS: dict[str, Any] = {
    "schema_version": 1,
    "name": "tiny-words",
    "description": "a tiny word language model",
    "domain": "language-model",
    "model": {"kind": "word-lm", "embedding_size": 16, "hidden_size": 8, "layers": 2},
    "recipe": [{"name": name, **recipe} for name, recipe in RECIPES.items()],
    "benchmark": {"sequence_length": 6, "batch_size": 2},
}


def words_workload(root: Path) -> Workload:
    """A workload whose corpus and checkpoint lie under `root`."""
    corpus = root / "corpus"
    corpus.mkdir()
    for split in ("train", "valid", "test"):
        (corpus / f"{split}.txt").write_text("the cat sat on a mat\nand a dog ran by\n" * 6, encoding="utf-8")
    data = {"kind": "text", "uri": str(corpus)}
    workload = Workload.model_validate(WORDS | {"data": data, "checkpoint": {"kind": "uri", "uri": "-"}})
    dataset = prepare(workload, ArtifactStore(root / "scratch"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        torch.save(build_model(workload, dataset).state_dict(), root / "weights.pt")
    checkpoint = {"kind": "uri", "uri": str(root / "weights.pt")}
    return Workload.model_validate(WORDS | {"data": data, "checkpoint": checkpoint})


def call(model: Call, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The model's outputs as a tuple."""
    with torch.inference_mode():
        return tensors_of(model(*inputs.values()))


def same(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> bool:
    """Whether two results are equal bit for bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))

"""Tiny text workloads that several test modules use."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tasks.workload import Workload

WORDS = "the cat sat on a mat and then ran to its old red house by the sea".split()  # noqa: SIM905


def write_corpus(folder: Path, lines: int = 60) -> Path:
    """A corpus whose next word mostly follows from the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(0)
    for split in ("train", "valid", "test"):
        text = []
        for _ in range(lines):
            start = source.randrange(len(WORDS))
            text.append(" ".join(WORDS[(start + step) % len(WORDS)] for step in range(source.randint(3, 9))))
        (folder / f"{split}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    return folder


def text_document(corpus: Path, **changes: Any) -> dict[str, Any]:
    """A workload document with a seeded checkpoint; `changes` replace whole sections."""
    return {
        "schema_version": 1,
        "name": "tiny-lm",
        "description": "tiny language model",
        "domain": "language-model",
        "data": {"kind": "text", "uri": str(corpus)},
        "model": {"kind": "word-lm", "embedding_size": 12, "hidden_size": 8, "layers": 2, "dropout": 0.0},
        "checkpoint": {"kind": "seeded", "seed": 3},
        "recipe": [
            {"name": "float", "method": "none", "runtimes": ["eager", "torchscript"]},
            {"name": "dynamic-int8", "method": "dynamic", "runtimes": ["eager", "torchscript"]},
            {"name": "embedding8", "method": "dynamic", "embedding_bits": 8, "runtimes": ["eager", "torchscript"]},
        ],
        "evaluate": {"mode": "segments", "segments": 4, "warm_up": 8},
        **changes,
    }


def text_workload(corpus: Path, **changes: Any) -> Workload:
    return Workload.model_validate(text_document(corpus, **changes))

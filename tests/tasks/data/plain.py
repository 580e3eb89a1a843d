"""Tokenization as it is defined: a transcription in plain Python that everything faster is held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path


def plain_tokens(texts: Iterable[Path]) -> tuple[list[list[int]], list[str], Counter[str]]:
    """Ids of each text, the words by id, and how often each occurs."""
    ids: dict[str, int] = {}
    counts: Counter[str] = Counter()
    encoded: list[list[int]] = []
    for text in texts:
        encoded.append([])
        with text.open(encoding="utf-8") as lines:
            for line in lines:
                for word in [*line.split(), "<eos>"]:
                    encoded[-1].append(ids.setdefault(word, len(ids)))
                    counts[word] += 1
    return encoded, list(ids), counts

"""Python's own language reference as a corpus: real English text that every CPython carries."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from storage.digest import digest_of
from storage.errors import ConfigurationError
from tasks.domains.language_model.corpus import corpus
from tasks.sources import code_digest

if TYPE_CHECKING:
    from tasks.domains.language_model.sections import PydocTopics
    from tasks.job import Workspace
    from tasks.refs import DatasetRef

_HELD_OUT_SHARE = 0.1


def prepare_pydoc(data: PydocTopics, workspace: Workspace) -> DatasetRef:
    """Split the topics of ``pydoc_data.topics`` into train, valid and test and tokenize them.

    The same seed and the same Python give the same corpus; another Python's topics are another corpus.

    Raises
    ------
    ConfigurationError
        This Python was installed without its ``pydoc_data``.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ConfigurationError(
            f"This Python ({sys.executable}) has no pydoc_data, which this corpus is made from.",
            hint='Use a complete CPython, or a corpus of your own with data.kind = "text".',
        ) from error
    source = {"topics": digest_of({"topics": topics}), "seed": data.seed, "split_by": code_digest(__name__)}
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        return corpus(lambda: _write_texts(topics, data.seed, Path(folder)), source, workspace)


def split_topics(topics: Mapping[str, str], seed: int) -> dict[str, list[str]]:
    """Choose the topics (names) of each split by `seed`: valid and test get a tenth of the text each, or a bit less.

    Topics differ in length by orders of magnitude, so the text is split by length and not by number of topics.
    """
    names = sorted(topics)
    random.Random(seed).shuffle(names)
    room = dict.fromkeys(("test", "valid"), _HELD_OUT_SHARE * sum(len(topics[name]) for name in names))
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for name in names:
        split = next((split for split, left in room.items() if len(topics[name]) <= left), "train")
        splits[split].append(name)
        if split in room:
            room[split] -= len(topics[name])
    return {split: sorted(chosen) for split, chosen in splits.items()}


def _write_texts(topics: Mapping[str, str], seed: int, folder: Path) -> dict[str, Path]:
    texts = {}
    for split, names in split_topics(topics, seed).items():
        texts[split] = folder / f"{split}.txt"
        lines = (topics[name].removesuffix("\n") + "\n" for name in names)
        texts[split].write_text("".join(lines), encoding="utf-8", newline="")
    return texts

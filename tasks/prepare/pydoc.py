"""Python's own language reference as a corpus: real English text that every CPython carries."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from storage.artifacts import ArtifactStore
from storage.digest import digest_of, source_digest
from storage.errors import ConfigurationError
from tasks.prepare.text import corpus
from tasks.progress import Progress, silent
from tasks.refs import DatasetRef
from tasks.workload import Workload
from tasks.workload.data import PydocTopics

# Shares of the topics, not of the words: no topic is in two splits.
_VALID_SHARE = 0.1
_TEST_SHARE = 0.1


def prepare_pydoc(workload: Workload, store: ArtifactStore, progress: Progress = silent) -> DatasetRef:
    """Split the topics of ``pydoc_data.topics`` into train, valid and test and tokenize them.

    The same seed and the same Python give the same corpus; another Python's topics are another corpus.

    Raises
    ------
    ConfigurationError
        This Python was installed without its ``pydoc_data``.
    """
    data = workload.data
    if not isinstance(data, PydocTopics):
        raise TypeError(f"not pydoc topics: {data.kind}")
    topics = _topics()
    source = {"topics": digest_of({"topics": topics}), "seed": data.seed, "split_by": source_digest(split_topics)}
    with tempfile.TemporaryDirectory(prefix="nightquant-") as folder:
        texts = {}
        for split, names in split_topics(topics, data.seed).items():
            texts[split] = Path(folder) / f"{split}.txt"
            texts[split].write_text("".join(_as_lines(topics[name]) for name in names), encoding="utf-8", newline="")
        return corpus(texts, source, store, progress)


def split_topics(topics: dict[str, str], seed: int) -> dict[str, list[str]]:
    """Names of the topics of each split: a tenth for valid, a tenth for test, chosen by `seed`."""
    names = sorted(topics)
    random.Random(seed).shuffle(names)
    valid, test = round(len(names) * _VALID_SHARE), round(len(names) * _TEST_SHARE)
    return {
        "train": sorted(names[valid + test :]),
        "valid": sorted(names[:valid]),
        "test": sorted(names[valid : valid + test]),
    }


def _topics() -> dict[str, str]:
    try:
        from pydoc_data import topics
    except ImportError as error:
        raise ConfigurationError(
            f"This Python ({sys.executable}) has no pydoc_data, from which the corpus is made.",
            hint='Use a complete CPython, or a corpus of your own with data.kind = "text".',
        ) from error
    return dict(topics.topics)


def _as_lines(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"

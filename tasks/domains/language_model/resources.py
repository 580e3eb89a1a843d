"""What a deployed word language model needs besides the model: ``vocabulary.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.domains.language_model.corpus import load_vocabulary

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.refs import DatasetRef

VOCABULARY = "vocabulary.json"


def write_vocabulary(dataset: DatasetRef, store: ArtifactStore, folder: Path) -> str:
    """Write the words by id, one JSON array with a word a line; give the file's name."""
    words = ",\n".join(json.dumps(word) for word in load_vocabulary(dataset, store))
    (folder / VOCABULARY).write_text(f"[\n{words}\n]\n", encoding="ascii")
    return VOCABULARY

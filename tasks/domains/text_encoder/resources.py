"""What a bundle holds beside the model: the tokenizer, and how texts become inputs and outputs classes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from tasks.domains.text_encoder.texts import TOKENIZER, read_description

if TYPE_CHECKING:
    from pathlib import Path

    from storage.artifacts import ArtifactStore
    from tasks.domains.text_encoder.sections import EncoderWorkload
    from tasks.job import Job

PREPROCESSING = "preprocessing.json"
_USE = (
    "tokenizers.Tokenizer.from_file('tokenizer.json').encode_batch(texts) cuts texts at max_length and pads them: ids "
    "are the rows of input_ids, attention_mask those of attention_mask, both int64"
)


def write_tokenizer(job: Job[EncoderWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
    """Write ``tokenizer.json``, which cuts texts by itself, and ``preprocessing.json``; file names by what they are."""
    source = store.path(job.dataset.kind, job.dataset.digest) / TOKENIZER
    shutil.copyfile(source, folder / TOKENIZER)
    described, spec = read_description(job.dataset, store), job.workload.model
    document: dict[str, object] = {
        "inputs": _USE,
        "max_length": described.max_length,
        "padding": described.padding,
    }
    if spec.task == "classification":
        document |= {"outputs": "logits; the largest is the class", "labels": described.labels}
    else:
        document |= {"outputs": "one vector a text; texts of like meaning have a high cosine"}
    (folder / PREPROCESSING).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="ascii")
    return {"tokenizer": TOKENIZER, "preprocessing": PREPROCESSING}

"""Tiny Hugging Face directories with random weights, and texts for them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from tasks.workload import Workload

LABELS = ("animal", "plant", "stone")
WORDS = {
    "animal": ["cat", "dog", "horse", "heron", "runs", "sleeps", "eats"],
    "plant": ["oak", "fern", "moss", "rose", "grows", "blooms", "wilts"],
    "stone": ["granite", "slate", "basalt", "chalk", "breaks", "lies", "weathers"],
}
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 48,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "roberta": SMALL | {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
    "electra": SMALL | {"embedding_size": 8},
    "mpnet": SMALL | {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 48},
    "deberta-v2": SMALL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
}


def sentences(count: int = 120, longest: int = 20, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts of different lengths, and the class that most of their words are of."""
    draw = random.Random(seed)
    labels = [LABELS[index % len(LABELS)] for index in range(count)]
    texts = [" ".join(draw.choice(WORDS[label]) for _ in range(draw.randint(2, longest))) for label in labels]
    return texts, labels


def write_directory(folder: Path, kind: str = "bert", *, task: str = "classification", **changes: Any) -> Path:
    """A directory as ``save_pretrained`` writes it, with a tokenizer of the words above."""
    import transformers

    from tasks.domains.text_encoder.prepare import train_tokenizer

    tokenizer = train_tokenizer(sentences(300)[0], 200)
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {name: index for index, name in enumerate(LABELS)}}
    document = CONFIGS[kind] | {"vocab_size": tokenizer.get_vocab_size()} | labels | changes
    config = transformers.AutoConfig.for_model(kind, **document)
    auto = transformers.AutoModelForSequenceClassification if task == "classification" else transformers.AutoModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = auto.from_config(config)
        for parameter in model.parameters():  # those that it is born with give nearly equal outputs for every text
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    return folder


def write_table(folder: Path, kind: str = "parquet", **columns: list[Any]) -> Path:
    """``texts.parquet`` with texts and labels, or the columns given."""
    texts, labels = sentences()
    folder.mkdir(parents=True, exist_ok=True)
    table, path = pa.table(columns or {"text": texts, "label": labels}), folder / f"texts.{kind}"
    pq.write_table(table, path) if kind == "parquet" else pyarrow.csv.write_csv(table, path)
    return path


def encoder(folder: Path, **changes: Any) -> Workload:
    """A workload on ``encoder/`` and ``texts.parquet`` in the folder; `changes` are sections."""
    document = {
        "schema_version": 1,
        "name": "tiny-encoder",
        "description": "",
        "domain": "text-encoder",
        "data": {"kind": "parquet", "uri": str(folder / "texts.parquet"), "text": "text", "label": "label"},
        "model": {"kind": "directory", "path": "encoder"},
        "checkpoint": {"kind": "directory"},
        "benchmark": {"sequence_length": 12},
        "recipe": [
            {"name": "float", "method": "none", "runtimes": ["eager", "torchscript", "onnxruntime", "openvino"]},
            {"name": "int8", "method": "dynamic", "runtimes": ["eager", "torchscript", "onnxruntime", "openvino"]},
            {"name": "static", "method": "static", "runtimes": ["onnxruntime", "openvino", "aot-inductor"]},
        ],
    }
    return Workload.model_validate(document | changes, context={"folder": str(folder)})


def of_config(**config: Any) -> dict[str, Any]:
    """A model section of a new BERT."""
    return {"kind": "config", "vocabulary": 200, "config": {"model_type": "bert"} | SMALL | config}

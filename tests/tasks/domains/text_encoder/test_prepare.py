"""Texts become the ids that the model's own tokenizer gives, and classes the model's own numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer

from storage.artifacts import ArtifactStore
from storage.errors import InputError, NightquantError
from tasks.data.samples import read_description
from tasks.domains.text_encoder.domain import load_texts
from tasks.domains.text_encoder.prepare import TOKENIZER
from tests.tasks.domains.text_encoder.encoders import (
    LABELS,
    encoder,
    of_config,
    sentences,
    write_directory,
    write_table,
)
from tests.tasks.pipeline import prepare

TEXTS, CLASSES = sentences()


def table(path: Path, **keys: Any) -> dict[str, Any]:
    return {"kind": path.suffix[1:], "uri": str(path), "text": "text", "label": "label"} | keys


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.slow
def test_ids_are_those_of_the_directorys_tokenizer(tmp_path: Path, kind: str) -> None:
    write_directory(tmp_path / "encoder")
    part = ["train"] * 40 + ["test"] * 80
    path = write_table(tmp_path, kind, text=TEXTS, label=CLASSES, part=part)
    store = ArtifactStore(tmp_path)
    dataset = prepare(encoder(tmp_path, data=table(path, split="part", calibration=16)), store)
    assert dataset.splits == {"train": 40, "calibration": 16, "test": 80}
    assert read_description(dataset, store).classes == LABELS
    test = load_texts(dataset, "test", store)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "encoder")
    assert [test.ids[row].tolist() for row in range(80)] == tokenizer(TEXTS[40:])["input_ids"]
    assert test.labels is not None
    assert [LABELS[label] for label in test.labels.tolist()] == CLASSES[40:]


def test_texts_beyond_the_models_positions_are_cut_with_a_note(tmp_path: Path) -> None:
    write_directory(tmp_path / "encoder")
    texts = ["oak " * 200, *TEXTS[1:]]
    path = write_table(tmp_path, text=texts, label=CLASSES, part=["test"] + ["train"] * 60 + ["test"] * 59)
    store, told = ArtifactStore(tmp_path), []
    workload = encoder(tmp_path, data=table(path, split="part"))
    dataset = prepare(workload, store, lambda done, total, unit="": told.append(unit))
    description = read_description(dataset, store)
    assert (description.max_length, description.cut) == (48, 1)
    assert "1 of them cut at 48 tokens" in told[-1]
    test = load_texts(dataset, "test", store)
    assert len(test.ids[0]) == 48
    # What the bundle gets cuts by itself, at the same place.
    kept = Tokenizer.from_file(str(store.path(dataset.kind, dataset.digest) / TOKENIZER))
    assert kept.encode(texts[0]).ids == test.ids[0].tolist()


def test_whole_numbers_that_are_labels_of_the_configuration_are_not_class_numbers(tmp_path: Path) -> None:
    ratings = {"id2label": {"0": "1", "1": "2", "2": "3"}, "label2id": {"1": 0, "2": 1, "3": 2}}
    write_directory(tmp_path / "encoder")
    config = tmp_path / "encoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | ratings))
    path = write_table(tmp_path, text=TEXTS, label=[index % 2 + 1 for index in range(120)], part=["train", "test"] * 60)
    store = ArtifactStore(tmp_path)
    labels = load_texts(prepare(encoder(tmp_path, data=table(path, split="part")), store), "test", store).labels
    assert labels is not None
    assert set(labels.tolist()) == {1}


def test_a_new_model_takes_its_classes_and_its_tokenizer_from_the_data(tmp_path: Path) -> None:
    path = write_table(tmp_path, text=TEXTS, label=[10 * (index % 2) for index in range(120)])
    store = ArtifactStore(tmp_path)
    workload = encoder(tmp_path, data=table(path), model=of_config(), checkpoint={"kind": "seeded"})
    dataset = prepare(workload, store)
    assert read_description(dataset, store).classes == ("0", "10")
    assert dataset.vocabulary <= 200
    text = load_texts(dataset, "test", store).ids[0].tolist()
    kept = Tokenizer.from_file(str(store.path(dataset.kind, dataset.digest) / TOKENIZER))
    assert kept.id_to_token(text[0]) == "[CLS]"
    assert kept.id_to_token(text[-1]) == "[SEP]"
    assert kept.decode(text).strip() in TEXTS


@pytest.mark.parametrize(
    ("columns", "keys", "expected"),
    [
        ({}, {"text": "words"}, "lacks these columns: words"),
        ({"label": ["mammal"] * 120}, {}, 'contains classes that id2label in the configuration lacks: "mammal"'),
        ({"label": [7] * 120}, {}, 'lacks: "7"'),
    ],
)
@pytest.mark.slow
def test_a_table_that_does_not_fit_is_one_clear_message(
    tmp_path: Path, columns: dict[str, Any], keys: dict[str, Any], expected: str
) -> None:
    write_directory(tmp_path / "encoder")
    path = write_table(tmp_path, **({"text": TEXTS, "label": CLASSES} | columns))
    with pytest.raises(InputError, match=expected):
        prepare(encoder(tmp_path, data=table(path, **keys)), ArtifactStore(tmp_path))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": {"kind": "directory", "path": "encoder", "max_length": 49}}, "has only 48 positions"),
        ({"benchmark": {"sequence_length": 49}}, "inputs of 49 tokens, but texts are truncated to 48"),
    ],
)
@pytest.mark.slow
def test_more_tokens_than_positions_are_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    write_directory(tmp_path / "encoder")
    path = write_table(tmp_path)
    with pytest.raises(NightquantError, match=expected):
        prepare(encoder(tmp_path, data=table(path), **changes), ArtifactStore(tmp_path))

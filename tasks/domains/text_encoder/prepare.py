"""Tokenize texts from a table or from Python's own sources, and number the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from storage.digest import digest_of, file_digest
from storage.errors import ConfigurationError, InputError
from storage.transfer import fetch
from tasks.data.columns import read_columns
from tasks.data.python_sources import library_files, sample_sources
from tasks.data.samples import TARGET, Description, find_or_write, numbered, shortened, write_split
from tasks.data.sections import TextTable
from tasks.data.tables import NOT_CONTENT, rows_of_splits
from tasks.data.weights import build_blank
from tasks.domains.text_encoder import EncoderWorkload
from tasks.domains.text_encoder.network import DEFAULT_LENGTH, build_encoder, longest_text
from tasks.environment.libraries import reported_as
from tasks.environment.machine import installed_version
from tasks.environment.sources import code_digest
from tasks.values.job import Workspace
from tasks.values.refs import DatasetRef

TOKENIZER = "tokenizer.json"
IDS, PAIRS = "input_ids", "pair_ids"
_TRAINED_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_NOT_ONE_CLASS = ("regression", "multi_label_classification")
Splits = Mapping[str, Mapping[str, list[Any]]]  # columns, keyed by split and name ("text", "label", "pair")


def prepare_texts(workload: EncoderWorkload, workspace: Workspace) -> DatasetRef:
    """Find the tokenized texts in the store, or read texts and tokenize them."""
    data, spec = workload.data, workload.model
    made_from: dict[str, object] = {
        "model": spec.model_dump(mode="json", include={"task", "max_length", "vocabulary", "config"}),
        "tokenizers": installed_version("tokenizers"),
        "transformers": installed_version("transformers"),
        "code": code_digest(__name__),
        "data": data.model_dump(mode="json", exclude=NOT_CONTENT),
    }
    if spec.kind == "directory":
        made_from["tokenizer"] = file_digest(_tokenizer_file(Path(spec.path)))
    if data.kind == "python-sources":
        digests = {name: file_digest(path) for name, path in library_files().items()}
        made_from["sources"] = digest_of({"files": digests})
        return _find_or_make(workload, made_from, lambda: sample_sources(data), workspace)
    downloads = workspace.store.root / "downloads"
    with fetch(data.uri, downloads, sha256=data.sha256, progress=workspace.progress) as source:
        made_from["sha256"] = source.sha256
        return _find_or_make(workload, made_from, lambda: _from_table(source.path(), data), workspace)


def _from_table(path: Path, data: TextTable) -> Splits:
    columns = {kind: name for kind in ("text", "label", "pair") if (name := getattr(data, kind))}
    table = read_columns(path, data, list(columns.values()))
    splits: dict[str, dict[str, list[Any]]] = {}
    for split, rows in rows_of_splits(table, data).items():
        if len(rows):
            taken = table.take(rows)
            splits[split] = {kind: taken[name].to_pylist() for kind, name in columns.items()}
    return splits


def _find_or_make(
    workload: EncoderWorkload, made_from: Mapping[str, object], read: Callable[[], Splits], workspace: Workspace
) -> DatasetRef:
    def fill(folder: Path) -> Description:
        splits = read()
        labels, classes = _numbered_classes(workload, splits)
        tokenizer = _tokenizer(workload, splits)
        length, configured = _length(workload, len(labels), tokenizer), workload.model.config.get("pad_token_id")
        # If the configuration lacks a padding id, pad with any id, because the mask hides the padding.
        padding = tokenizer.token_to_id(_TRAINED_TOKENS[0]) or 0
        if isinstance(configured, int) and configured >= 0:
            padding = configured
        tokenizer.no_padding()
        tokenizer.enable_truncation(length)
        cut, done, total = 0, 0, sum(len(split["text"]) for split in splits.values())
        for name, split in splits.items():
            columns: dict[str, Tensor | list[Tensor]] = {}
            for column, kind in ((IDS, "text"), (PAIRS, "pair")):
                if kind in split:
                    encoded = tokenizer.encode_batch(split[kind])
                    cut += sum(bool(text.overflowing) for text in encoded)
                    columns[column] = [torch.tensor(text.ids, dtype=torch.int32) for text in encoded]
            if name in classes:
                columns[TARGET] = torch.tensor(classes[name], dtype=torch.int64)
            write_split(folder, name, columns)
            done += len(split["text"])
            workspace.progress(done, total, f"texts, {cut} of them cut at {length} tokens")
        # The bundle contains this tokenizer, so enable padding for users of the bundle.
        tokenizer.enable_padding(pad_id=padding, pad_token=tokenizer.id_to_token(padding) or _TRAINED_TOKENS[0])
        tokenizer.save(str(folder / TOKENIZER))
        return Description(
            splits={name: len(split["text"]) for name, split in splits.items()},
            classes=labels,
            vocabulary=tokenizer.get_vocab_size(),
            sample_shape=(length,),
            max_length=length,
            padding=padding,
            cut=cut,
        )

    return find_or_write(workspace.store, made_from, fill)


def _numbered_classes(workload: EncoderWorkload, splits: Splits) -> tuple[tuple[str, ...], dict[str, list[int]]]:
    """Return the class names, and the class numbers of the texts in each split."""
    if workload.model.task == "embedding":
        return (), {}
    labels = workload.model.labels
    # Integers are class numbers, unless labels are integers themselves, such as the ratings 1 to 5.
    are_numbers = bool(labels) and not any(label.lstrip("-").isdecimal() for label in labels)

    def name_of(label: str | int) -> str:
        is_number = are_numbers and isinstance(label, int) and 0 <= label < len(labels)
        return labels[int(label)] if is_number else str(label)

    named = {split: [name_of(label) for label in columns["label"]] for split, columns in splits.items()}
    classes = numbered(set().union(*named.values()), labels, "The label column", "id2label in the configuration")
    if len(classes) < 2 or workload.model.config.get("problem_type") in _NOT_ONE_CLASS:
        raise ConfigurationError(
            "A classification workload needs at least two classes, and exactly one class for each text. "
            f"Labels found: {', '.join(shortened(classes))}.",
            hint="Regression and several labels per text are not supported; correct the labels.",
        )
    numbers = {label: index for index, label in enumerate(classes)}
    return classes, {split: [numbers[name] for name in names] for split, names in named.items()}


def _tokenizer(workload: EncoderWorkload, splits: Splits) -> Tokenizer:
    spec = workload.model
    if spec.kind == "config":
        return train_tokenizer(splits["train"]["text"], spec.vocabulary)
    path = _tokenizer_file(Path(spec.path))
    with reported_as(f"The tokenizers library cannot read {path}", "Save it with save_pretrained."):
        tokenizer = Tokenizer.from_file(str(path))
    size = spec.config.get("vocab_size")
    if isinstance(size, int) and tokenizer.get_vocab_size() > size:
        raise InputError(
            f"{path} has {tokenizer.get_vocab_size()} tokens, but vocab_size in config.json is {size}.",
            hint="Use the tokenizer that the model was trained with.",
        )
    return tokenizer


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """Train a byte-pair tokenizer; a WordPiece trainer is not reproducible, because it breaks ties in hash order."""
    tokenizer = Tokenizer(models.BPE(unk_token=_TRAINED_TOKENS[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=list(_TRAINED_TOKENS), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    # Special tokens have the lowest ids, in the order of _TRAINED_TOKENS.
    _, _, begin, end = ((token, number) for number, token in enumerate(_TRAINED_TOKENS))
    tokenizer.post_processor = processors.BertProcessing(end, begin)
    return tokenizer


def _length(workload: EncoderWorkload, classes: int, tokenizer: Tokenizer) -> int:
    sizes = DatasetRef(kind="samples", digest="", splits={}, classes=classes, vocabulary=tokenizer.get_vocab_size())
    positions = longest_text(build_blank(lambda: build_encoder(workload.model, sizes)))
    length = workload.model.max_length or min(positions, DEFAULT_LENGTH)
    timed = workload.benchmark.sequence_length
    if length > positions:
        raise ConfigurationError(
            f"model.max_length is {length}, but the model has only {positions} positions.",
            hint=f"Set model.max_length to {positions} or less.",
        )
    if timed > length:
        raise ConfigurationError(
            f"[benchmark] uses inputs of {timed} tokens, but texts are truncated to {length} tokens.",
            hint=f"Set sequence_length to {length} or less.",
        )
    return length


def _tokenizer_file(folder: Path) -> Path:
    path = folder / TOKENIZER
    if not path.is_file():  # older versions of transformers saved only a vocabulary
        raise InputError(
            f"{folder} does not contain {TOKENIZER}.",
            hint="Create the file with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
        )
    return path

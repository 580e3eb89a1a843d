"""What a Hugging Face directory may be, and what is refused of one, each with one message."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.data.weights import load_state
from tests.tasks.domains.text_encoder.encoders import encoder, write_directory, write_table
from tests.tasks.pipeline import job_of


def edit(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(document), encoding="utf-8")


def as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def headless(folder: Path) -> None:
    state = {key: value for key, value in load_file(folder / "model.safetensors").items() if "classifier" not in key}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config.json": (lambda folder: (folder / "config.json").unlink(), "does not contain config.json"),
    "pickled weights": (as_pickle, "model.safetensors cannot be read"),
    "code": (lambda folder: edit(folder / "config.json", auto_map={"AutoModel": "mine.Model"}), "never run"),
    "unknown architecture": (lambda folder: edit(folder / "config.json", model_type="novel"), 'model_type. "novel"'),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "does not contain tokenizer.json"),
    "broken tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text("{}"),
        "The tokenizers library cannot read ",
    ),
    "foreign tokenizer": (lambda folder: edit(folder / "config.json", vocab_size=9), "vocab_size in config.json is 9"),
    "no head": (headless, "These weights are missing from .* or do not match.*head"),
    "int8": (lambda folder: edit(folder / "config.json", quantization_config={"bits": 8}), "use the float model"),
    "cut weights": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100]),
        "transformers cannot load",
    ),
    "several labels a text": (
        lambda folder: edit(folder / "config.json", problem_type="multi_label_classification"),
        "several labels per text are not supported",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.slow
def test_a_directory_that_cannot_be_used_is_one_clear_message(tmp_path: Path, name: str) -> None:
    spoil, expected = BROKEN[name]
    write_table(tmp_path)
    spoil(write_directory(tmp_path / "encoder"))
    # What a file says is seen as the workload is read, the rest as it is prepared.
    with pytest.raises((NightquantError, ValueError), match=expected):
        job_of(encoder(tmp_path), ArtifactStore(tmp_path))


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not contain config\.json.*set model\.path to a directory"):
        encoder(tmp_path, model={"kind": "directory", "path": "bert-base-uncased"})


@pytest.mark.slow
def test_weights_are_those_of_the_file_whatever_their_precision(tmp_path: Path) -> None:
    write_table(tmp_path)
    folder = write_directory(tmp_path / "encoder")
    halves = {key: value.half() for key, value in load_file(folder / "model.safetensors").items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    edit(folder / "config.json", dtype="float16")
    store = ArtifactStore(tmp_path)
    state = load_state(job_of(encoder(tmp_path), store).checkpoint, store)
    assert {key.removeprefix("model."): value for key, value in state.items()}.keys() == halves.keys()
    assert all(torch.equal(value, halves[key.removeprefix("model.")].float()) for key, value in state.items())


def test_nothing_is_asked_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path)
    write_directory(tmp_path / "encoder")

    def refuse(*_: object) -> None:
        raise AssertionError("it went to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert job_of(encoder(tmp_path), ArtifactStore(tmp_path)).checkpoint.parameters > 0


@pytest.mark.parametrize(("flag", "pooling"), [("mean", "mean"), ("cls", "cls"), ("max", "max")])
@pytest.mark.slow
def test_pooling_is_as_sentence_transformers_files_say(tmp_path: Path, flag: str, pooling: str) -> None:
    folder = write_directory(tmp_path / "encoder", task="embedding")
    write_table(tmp_path)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    names = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    settings = {f"pooling_mode_{name}": mode == flag for mode, name in names.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    data = {"kind": "parquet", "uri": str(tmp_path / "texts.parquet"), "text": "text"}
    model = {"kind": "directory", "path": "encoder", "task": "embedding"}
    workload = encoder(tmp_path, data=data, model=model)
    assert workload.model.model_dump(include={"pooling", "normalize"}) == {"pooling": pooling, "normalize": True}
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "weightedmean"}', encoding="utf-8")
    with pytest.raises(ValueError, match="encoder is weightedmean, which is not supported; use mean, cls or max"):
        encoder(tmp_path, data=data, model=model)

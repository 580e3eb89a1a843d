"""``nightquant init``: files for models of all kinds that read, check and run; nothing is overwritten."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.models import resnet18

from flows.cli import nightquant
from flows.commands import toml
from flows.commands.init import command
from flows.commands.setup import workloads
from flows.draft import Asked, sections
from storage.errors import ConfigurationError
from tasks.run.stages import evaluate
from tasks.workload import read_workload
from tests.flows.trials import Before, Here
from tests.tasks.domains.text_encoder.encoders import write_directory, write_table
from tests.tasks.outliers import write_networks

MODULE = """
import torch
from torch import nn

class Tagger(nn.Module):
    def __init__(self, words=50):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(words, 8), nn.LSTM(8, 16, batch_first=True)
        self.tags = nn.Linear(16, 4)

    def forward(self, words, mask):
        return self.tags(self.lstm(self.embedding(words))[0] * mask.unsqueeze(2)).transpose(1, 2)

def read():
    generator = torch.Generator().manual_seed(0)
    rows = []
    for length in range(3, 43):
        words = torch.randint(50, (length,), generator=generator)
        rows.append((words, words % 4))
    return {"train": rows, "test": rows}

def pad(items):
    words = nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True)
    tags = nn.utils.rnn.pad_sequence([tags for _, tags in items], batch_first=True, padding_value=-100)
    return {"words": words, "mask": (tags != -100).float()}, tags

def untested():
    return {"train": read()["train"]}

def broken():
    raise RuntimeError("no weights today")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # tests/documentation/test_your_model.py tries compiled packages out, which takes most of a minute.
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    (tmp_path / "tagging_model.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def init(*options: str) -> Result:
    return CliRunner().invoke(command, [*options, "--store", "store"], standalone_mode=False)


def written(result: Result, path: Path) -> Mapping[str, object]:
    assert result.return_value == 0, (result.output, result.exception)
    read_workload(path)
    return tomllib.loads(path.read_text(encoding="utf-8"))


def here(folder: Path, monkeypatch: pytest.MonkeyPatch, before: Before | None = None) -> None:
    """Run the stages of `init` in this process, for torch's runtime alone."""
    monkeypatch.setattr("flows.draft._runtimes", lambda recipe: ["torchscript"])
    monkeypatch.setattr("flows.commands.init.running", lambda store: nullcontext(Here(folder / store, before)))


@pytest.mark.slow
def test_a_module_gets_its_axes_its_metric_and_the_recipes_that_it_takes(folder: Path) -> None:
    done = init("--model", "tagging_model:Tagger", "--data", "tagging_model:read", "--collate", "tagging_model:pad")
    document = written(done, folder / "tagging-model.toml")
    assert '! the "calibration" split is missing, so calibration uses 40 of 40 training rows' in done.output
    assert document["data"] == {
        "kind": "factory",
        "factory": "tagging_model:read",
        "files": [],
        "collate": "tagging_model:pad",
        "axes": {"words": ["batch", "length"], "mask": ["batch", "length"]},
    }
    assert document["evaluate"] == {"metric": "loss"}
    assert document["checkpoint"] == {"kind": "seeded"}
    text = (folder / "tagging-model.toml").read_text(encoding="utf-8")
    assert re.search(r"# 2,\d{3} parameters\. One call takes words int64 \[1, 3\], mask float32 \[1, 3\]", text)
    recipes = {recipe.name: recipe.runtimes for recipe in read_workload(folder / "tagging-model.toml").recipe}
    assert "torchscript" in recipes["dynamic-int8"]
    # What init tried out is what is checked: once, for it takes as long.
    checked = CliRunner().invoke(
        workloads, ["--check", "-w", "tagging-model.toml", "--store", "store"], standalone_mode=False
    )
    assert checked.return_value == 0, checked.output
    again = init("--model", "tagging_model:Tagger", "--data", "tagging_model:read")
    assert "tagging-model.toml already exists, and init does not overwrite files" in str(again.exception)
    assert (folder / "tagging-model.toml").read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_data_without_a_test_split_is_a_wrong_request_and_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(folder, monkeypatch)
    done = init("--model", "tagging_model:Tagger", "--data", "tagging_model:untested")
    assert isinstance(done.exception, ConfigurationError)
    assert "returned too few samples: {'train': 40}" in str(done.exception)
    assert done.exception.exit_code == 2
    assert not (folder / "tagging-model.toml").exists()


@pytest.mark.slow
def test_a_table_gets_its_columns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here(folder, monkeypatch)
    (folder / "table.csv").write_text("width,name,height,weight\n" + "1,a,2,3.5\n2,b,4,7.5\n3,c,5,8.5\n" * 20)
    options = ("--argument", "in_features=2", "--argument", "out_features=1", "-o", "weights.toml")
    document = written(
        init("--model", "torch.nn:Linear", *options, "--data", "table.csv", "--target", "weight"), Path("weights.toml")
    )
    columns = {"features": ["width", "height"], "target": "weight"}
    assert document["data"] == {"kind": "csv", "uri": "table.csv", **columns}
    assert document["evaluate"] == {"metric": "mse"}
    strict = {"objective": "fastest", "quality_drop": "relative", "max_quality_drop": 0.01}
    assert document["gate"] == strict
    (folder / "own_metric.py").write_text("def worst(outputs, targets):\n    return (outputs[:, 0] - targets).abs()\n")
    own = ("--metric", "own_metric:worst", "--lower-is-better", "-o", "own.toml")
    document = written(
        init("--model", "torch.nn:Linear", *options[:4], *own, "--data", "table.csv", "--target", "weight"),
        Path("own.toml"),
    )
    assert document["evaluate"] == {"metric": "own_metric:worst", "higher_is_better": False}
    assert document["gate"] == strict


@pytest.mark.slow
@pytest.mark.long
def test_an_old_checkpoint_of_torchvisions_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here(folder, monkeypatch)
    (folder / "photos" / "birds").mkdir(parents=True)  # a class without images
    for name in ("cats", "dogs"):
        (folder / "photos" / name).mkdir(parents=True)
        for index in range(20):
            colour = (10 * index, 100 if name == "cats" else 200, 50)
            Image.new("RGB", (40, 40), colour).save(folder / "photos" / name / f"{index}.png")
    torch.save({"state_dict": resnet18(num_classes=3).half().state_dict()}, folder / "old.pth")
    done = init("--model", "resnet18", "--checkpoint", "old.pth", "--data", "photos")
    document = written(done, folder / "resnet18.toml")
    assert document["model"] == {"kind": "torchvision", "name": "resnet18"}
    assert document["checkpoint"] == {"kind": "uri", "uri": "old.pth"}
    classes = ["birds", "cats", "dogs"]
    keys = {"image_size": 40, "calibration": 10, "classes": classes}
    assert document["data"] == {"kind": "image-folder", "uri": "photos", **keys}
    assert "Chose data.image_size = 40: 40 of 40 images are 40 x 40." in done.output
    assert "images float32 [1, 3, 40, 40]" in done.output
    assert 'used the weights under "state_dict"; converted float16 values to float32' in done.output


@pytest.mark.slow
def test_weights_that_int8_spoils_are_named_before_a_night(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here(folder, monkeypatch)
    write_networks(folder)
    options = ("--model", "arrival_net:Net", "--data", "arrival_net:read", "--checkpoint", "planted.pth")
    done = init(*options, "-o", "net.toml")
    document = written(done, folder / "net.toml")
    bounds = {"quality_drop": "absolute", "max_quality_drop": 0.5}
    assert document["gate"] == {"objective": "fastest"} | bounds
    assert "\nChose gate.max_quality_drop = 0.5: accuracy is a percentage, and a candidate may lose" in done.output
    said = r"static-int8/torchscript loses [\d.]+% of accuracy on 256 samples\. "
    assert re.search(rf"(?m)^  ! {said}", done.output)
    text = (folder / "net.toml").read_text(encoding="utf-8")
    assert re.search(rf"(?m)^# {said}", text[text.index('name = "static-int8"') : text.index("[benchmark]")])


@pytest.mark.slow
def test_an_interruption_leaves_the_file_with_the_estimates_so_far(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_networks(folder)

    def before(stage: object, label: str, args: tuple[Any, ...]) -> None:
        if stage is evaluate and str(args[1].name) == "static-int8/torchscript":
            raise KeyboardInterrupt

    here(folder, monkeypatch, before)
    options = ("--model", "arrival_net:Net", "--data", "arrival_net:read", "--checkpoint", "planted.pth")
    out, code = StringIO(), None
    with redirect_stdout(out), suppress(click.Abort):
        code = command.main([*options, "-o", "net.toml", "--store", "store"], standalone_mode=False)
    assert code is None
    text = (folder / "net.toml").read_text(encoding="utf-8")
    assert [recipe.name for recipe in read_workload(folder / "net.toml").recipe] == [
        "float", "dynamic-int8", "static-int8",
    ]  # fmt: skip
    late = "static-int8/torchscript was not compared with the float model: the trial ended first"
    assert f"# {late}\n" in text
    assert f"  ! {late}\n" in out.getvalue()
    assert "Written to net.toml." in out.getvalue()
    assert "dynamic-int8/torchscript was not compared" not in text + out.getvalue()
    assert re.search(r"(?m)^# The float model has accuracy [\d.]+ on 256 test samples\.$", text)


@pytest.mark.slow
@pytest.mark.parametrize("debug", [True, False])
def test_debug_shows_the_traceback_behind_a_problem(debug: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("not today")

    monkeypatch.setattr("tasks.run.preview.obtain", fail)
    here(folder, monkeypatch)
    options = ("--model", "tagging_model:Tagger", "--data", "tagging_model:read", "--collate", "tagging_model:pad")
    flags = ["--debug"] if debug else []
    done = CliRunner().invoke(nightquant, [*flags, "init", *options, "--store", "store"], standalone_mode=False)
    assert done.return_value == 2
    assert re.search(r"ValueError: not today in test_init.py, line \d+\. --debug shows the traceback\.", done.output)
    assert ("in fail" in done.output) is debug


@pytest.mark.slow
def test_where_the_model_does_not_work_nothing_is_written(folder: Path) -> None:
    done = init("--model", "tagging_model:broken", "--data", "tagging_model:read")
    assert "RuntimeError: no weights today" in str(done.exception or done.output)
    assert done.return_value != 0
    assert not list(folder.glob("*.toml"))


def test_an_embedding_gets_its_pairs_and_its_pooling(folder: Path) -> None:
    write_directory(folder / "bert", task="embedding")
    (folder / "bert" / "1_Pooling").mkdir()
    (folder / "bert" / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    modules = [{"type": "models.Transformer", "path": ""}, {"type": "models.Pooling", "path": "1_Pooling"}]
    (folder / "bert" / "modules.json").write_text(json.dumps(modules))
    texts = ["a", "b"]
    write_table(folder, "csv", number=[1, 2], question=texts, answer=texts, split=["train", "test"])
    found = sections(Asked("bert", "texts.csv", folder, target="answer"))
    columns = {"text": "question", "pair": "answer", "split": "split"}
    assert found["data"] == {"kind": "csv", "uri": "texts.csv", **columns}
    model = {"kind": "directory", "path": "bert", "task": "embedding", "normalize": False, "pooling": "cls"}
    assert found["model"] == model
    assert found["evaluate"] == {"metric": "retrieval"}
    with pytest.raises(ConfigurationError, match=r'does not have a column "awnser" \(did you mean "answer"\?\)'):
        sections(Asked("bert", "texts.csv", folder, target="awnser"))


@given(
    st.recursive(
        st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
@pytest.mark.slow
def test_values_are_written_as_toml_reads_them(value: object) -> None:
    assert tomllib.loads(f"value = {toml(value)}")["value"] == value

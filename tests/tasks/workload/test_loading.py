import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.request import BUILT_IN
from storage.errors import ConfigurationError
from tasks.workload import Workload, find_workloads, read_workload

GOOD = """
schema_version = 1
name = "tiny"
description = "a tiny language model"
domain = "language-model"
[data]
kind = "text"
uri = "corpus"
[model]
kind = "word-lm"
[checkpoint]
kind = "train"
[[recipe]]
name = "float"
method = "none"
[[recipe]]
name = "dynamic-int8"
method = "dynamic"
runtimes = ["eager", "torchscript"]
"""


def _write(folder: Path, text: str = GOOD, name: str = "tiny.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def _refused(folder: Path, old: str, new: str) -> str:
    assert old in GOOD
    path = _write(folder, GOOD.replace(old, new))
    with pytest.raises(ConfigurationError) as error:
        read_workload(path)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("path", sorted(BUILT_IN.glob("*.toml")), ids=lambda path: path.stem)
def test_built_in_workloads_are_valid_and_named_like_their_files(path):
    assert read_workload(path).name == path.stem


def test_a_file_is_read_with_its_candidates_and_paths_from_its_folder(tmp_path):
    workload = read_workload(_write(tmp_path))
    assert [*map(str, workload.candidates())] == ["float/eager", "dynamic-int8/eager", "dynamic-int8/torchscript"]
    assert str(workload.baseline_name) == "float/eager"
    assert workload.data.uri == str(tmp_path / "corpus")


def test_without_names_every_built_in_workload_is_found():
    assert {one.name for one in find_workloads([], BUILT_IN)} == {"word-lm", "lstm-demo", "resnet18", "python-text"}


def test_two_workloads_of_one_name_are_refused(tmp_path):
    path = str(_write(tmp_path))
    with pytest.raises(ConfigurationError, match='Two workloads are named "tiny"'):
        find_workloads([path, path], BUILT_IN)


@given(junk=st.text(max_size=200))
def test_any_text_is_either_a_workload_or_refused_as_a_users_error(tmp_path_factory, junk):
    path = tmp_path_factory.mktemp("junk") / "junk.toml"
    path.write_text(junk, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(ConfigurationError):
        read_workload(path)


def test_keys_and_values_of_any_length_and_kind_are_cut_and_escaped(tmp_path: Path) -> None:
    long, hostile = "k" * 100_000, '"\\u001b[2J\\u202e"'
    with pytest.raises(ConfigurationError, match="Extra inputs are not permitted") as refused:
        read_workload(_write(tmp_path, GOOD.replace("[data]", f"[data]\n{long} = 1\n{hostile} = 1")))
    assert len(str(refused.value)) < 5000
    assert all(character.isprintable() or character == "\n" for character in str(refused.value))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema_version = 1", "schema_version = ", "line 2"),
        ('uri = "corpus"', 'urii = "corpus"', """(got 'corpus') (did you mean "uri"?)"""),
        ('kind = "word-lm"', 'kind = "word-lm"\nlayer = 2', "model.layer: Extra inputs"),
        ('kind = "word-lm"', 'kind = "word-lm"\nlayers = "five"', "valid integer"),
        ('kind = "word-lm"', 'kind = "lstm"', "Input should be 'word-lm'"),
        ("[model]", "[modle]\n[model]", '(did you mean "model"?)'),
        ('method = "dynamic"', 'method = "dynamic"\nper_chanel = true', '(did you mean "per_channel"?)'),
        ('method = "dynamic"', "per_channel = true", "recipe.1.method: Field required"),
        ('kind = "text"', 'kind = "txt"', '(did you mean "text"?)'),
        ('domain = "language-model"', 'domain = "language-modell"', '(did you mean "language-model"?)'),
        ('method = "dynamic"', 'method = "dynamics"', '(did you mean "dynamic"?)'),
        ('"torchscript"', '"torchscrip"', '(did you mean "torchscript"?)'),
        ('method = "dynamic"', 'method = "dynamic"\nmodules = ["LTSM"]', '(did you mean "LSTM"?)'),
        ('method = "dynamic"\nruntimes = ["eager", "torchscript"]', 'method = "static"', "is not compatible"),
        ('method = "none"', 'method = "none"\nonednn = false\nruntimes = ["torchscript"]', "cannot switch oneDNN off"),
        ("[model]", '[benchmark]\nbaseline = "float/torchscript"\n[model]', "choose one of float/eager"),
        ('name = "dynamic-int8"', 'name = "float"', "the recipe names ['float', 'float'] are not unique"),
        ("[model]", "[benchmark.capacity]\nbudjet_s = 1\n[model]", '(did you mean "budget_s"?)'),
        ("[model]", "[benchmark.capacity]\nbatch_size = 2\n[model]", "batch_size: Extra inputs are not permitted"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason_and_a_proposal(tmp_path, old, new, said):
    assert said in _refused(tmp_path, old, new)


def test_a_workload_that_is_nearly_one_of_ours_gets_a_proposal():
    with pytest.raises(ConfigurationError, match=r'Unknown workload "wordlm" \(did you mean "word-lm"\?\)\.'):
        find_workloads(["wordlm"], BUILT_IN)


def floats_of(document: dict[str, Any]) -> Workload:
    return Workload.model_validate(tomllib.loads(GOOD) | document)


def test_twins_are_the_missing_float_candidates_of_the_quantized_runtimes() -> None:
    quantized = {"name": "int8", "method": "dynamic", "runtimes": ["onnxruntime", "torchscript"]}
    plain = {"name": "float", "method": "none", "runtimes": ["torchscript"]}
    other = {"name": "channels-last", "method": "none", "runtimes": ["torchscript"], "memory_format": "channels-last"}
    found = floats_of(
        {"recipe": [other, plain, quantized], "benchmark": {"baseline": "float/torchscript"}}
    ).with_twins()
    names = [str(name) for name in found.candidates()]
    assert names[:3] == ["channels-last/torchscript", "float/torchscript", "float/onnxruntime"]
    assert [str(found.twin(name)) for name in ("torchscript", "onnxruntime", "openvino")] == [
        "channels-last/torchscript",
        "float/onnxruntime",
        "None",
    ]
    added = floats_of({"recipe": [other, quantized], "benchmark": {"baseline": "fastest-float"}}).with_twins()
    assert added.recipe[-1].name == "float"
    assert added.recipe[-1].runtimes == ("onnxruntime",)
    off = floats_of({"recipe": [plain, quantized], "benchmark": {"baseline": "float/torchscript", "twins": False}})
    assert off.with_twins() is off


def test_the_fastest_float_is_the_first_that_can_be_deployed_until_it_is_known() -> None:
    recipes = [{"name": "float", "method": "none", "runtimes": ["eager", "torchscript"]}]
    found = floats_of({"recipe": recipes, "benchmark": {"baseline": "fastest-float"}})
    assert str(found.baseline_name) == "float/torchscript"
    assert str(found.with_baseline("float/eager").baseline_name) == "float/eager"
    recipes = [{"name": "float", "method": "none", "runtimes": ["eager"]}]
    with pytest.raises(ValidationError, match="requires a float candidate that can be deployed"):
        floats_of({"recipe": recipes, "benchmark": {"baseline": "fastest-float"}})

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
from tests.documentation.pages import ROOT

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


def test_candidates_are_every_recipe_in_every_of_its_runtimes(tmp_path):
    workload = read_workload(_write(tmp_path))
    assert workload.candidates() == ["float/eager", "dynamic-int8/eager", "dynamic-int8/torchscript"]
    assert workload.baseline() == ("float", "eager")


def test_relative_paths_count_from_the_files_folder(tmp_path):
    assert read_workload(_write(tmp_path)).data.uri == str(tmp_path / "corpus")


def test_urls_are_left_as_they_are(tmp_path):
    text = GOOD.replace('uri = "corpus"', 'uri = "https://example.org/corpus.zip"')
    assert read_workload(_write(tmp_path, text)).data.uri == "https://example.org/corpus.zip"


def test_a_wrong_key_is_refused_by_name(tmp_path):
    assert "model.hiden_size" in _refused(tmp_path, 'kind = "word-lm"', 'kind = "word-lm"\nhiden_size = 3')


def test_a_wrong_type_is_refused_with_what_was_expected(tmp_path):
    message = _refused(tmp_path, 'kind = "word-lm"', 'kind = "word-lm"\nlayers = "five"')
    assert "layers" in message
    assert "integer" in message
    assert "'five'" in message


def test_an_unknown_kind_lists_the_known_ones(tmp_path):
    message = _refused(tmp_path, 'kind = "text"', 'kind = "texts"')
    assert "pydoc-topics" in message


def test_an_unknown_domain_lists_the_known_ones(tmp_path):
    message = _refused(tmp_path, 'domain = "language-model"', 'domain = "language-modell"')
    assert 'did you mean "language-model"?' in message
    assert "image-classification" in message


def test_an_unknown_runtime_lists_the_known_ones(tmp_path):
    message = _refused(tmp_path, '["eager", "torchscript"]', '["eager", "tensorrt"]')
    assert 'unknown runtime "tensorrt"' in message
    assert "eager, torchscript, onnxruntime, openvino" in message


def test_an_unknown_method_lists_the_known_ones(tmp_path):
    assert "static" in _refused(tmp_path, 'method = "dynamic"', 'method = "dynamo"')


def test_a_method_that_does_not_fit_the_domain_is_refused(tmp_path):
    assert 'method "static" of recipe "dynamic-int8" is not compatible' in _refused(
        tmp_path, 'method = "dynamic"\nruntimes = ["eager", "torchscript"]', 'method = "static"'
    )


def test_switching_onednn_off_is_refused_where_a_file_could_not_carry_it(tmp_path):
    assert "cannot switch oneDNN off" in _refused(
        tmp_path, 'method = "none"', 'method = "none"\nonednn = false\nruntimes = ["eager", "torchscript"]'
    )


def test_a_model_that_does_not_fit_the_domain_is_refused(tmp_path):
    assert "Input should be 'word-lm'" in _refused(tmp_path, 'kind = "word-lm"', 'kind = "lstm"')


def test_a_baseline_that_is_no_candidate_is_refused_with_the_candidates(tmp_path):
    message = _refused(tmp_path, "[checkpoint]", '[benchmark]\nbaseline = "float/torchscript"\n[checkpoint]')
    assert "float/eager" in message


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ("[benchmark.capacity]\nprise_per_hour = 1", "price_per_hour"),
        ('[gate]\nobjective = "cheapest"', 'objective = "cheapest" requires the section [benchmark.capacity]'),
        ("[gate]\nmin_capacity_ratio = 1.1", "min_capacity_ratio requires the section [benchmark.capacity]"),
    ],
)
def test_a_capacity_that_could_not_be_measured_or_judged_is_refused(tmp_path, sections, said):
    assert said in _refused(tmp_path, '[[recipe]]\nname = "float"', f'{sections}\n[[recipe]]\nname = "float"')


def test_the_cheapest_can_be_chosen_where_capacity_is_measured(tmp_path):
    text = GOOD + '[benchmark.capacity]\n[gate]\nobjective = "cheapest"\n'
    assert read_workload(_write(tmp_path, text)).gate.needs_capacity


def test_two_recipes_of_one_name_are_refused(tmp_path):
    assert "the recipe names ['float', 'float'] are not unique" in _refused(
        tmp_path, 'name = "dynamic-int8"', 'name = "float"'
    )


def test_what_is_not_toml_is_refused_with_its_place(tmp_path):
    assert "line 2" in _refused(tmp_path, "schema_version = 1", "schema_version = ")


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigurationError, match=r"gone\.toml: cannot be read"):
        read_workload(tmp_path / "gone.toml")


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


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{b=" * 100_000,
        "seed = " + "9" * 5000,
        "seed = 0x" + "f" * 5000,
        "seed = 0b" + "1" * 20_000,
        GOOD.replace("schema_version = 1", "schema_version = 0x" + "f" * 5000),
    ],
    ids=["arrays", "tables", "digits", "hexadecimal", "binary", "in a known key"],
)
def test_toml_that_would_exhaust_the_parser_is_one_message(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"tiny\.toml is not valid TOML: ") as refused:
        read_workload(_write(tmp_path, text))
    assert len(str(refused.value)) < 1000


def test_keys_and_values_of_any_length_and_kind_are_cut_and_escaped(tmp_path: Path) -> None:
    long, hostile = "k" * 100_000, '"\\u001b[2J\\u202e"'
    with pytest.raises(ConfigurationError, match="Extra inputs are not permitted") as refused:
        read_workload(_write(tmp_path, GOOD.replace("[data]", f"[data]\n{long} = 1\n{hostile} = 1")))
    assert len(str(refused.value)) < 5000
    assert all(character.isprintable() or character == "\n" for character in str(refused.value))


@pytest.mark.parametrize("key", ["description", "licence"])
@pytest.mark.slow
def test_a_description_that_a_terminal_would_obey_is_refused(key: str, tmp_path: Path) -> None:
    text = GOOD.replace('description = "a tiny language model"\n', 'description = "a"\nlicence = "b"\n')
    text = "\n".join(f'{key} = "\\u001b[2J"' if line.startswith(key) else line for line in text.split("\n"))
    with pytest.raises(ConfigurationError, match=f"{key}: .*control characters"):
        read_workload(_write(tmp_path, text))


def test_a_description_may_hold_what_rich_takes_for_markup(tmp_path: Path) -> None:
    text = GOOD.replace("a tiny language model", "see [/foo] and [bold]")
    assert read_workload(_write(tmp_path, text)).description == "see [/foo] and [bold]"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'uri = "corpus"',
            'urii = "corpus"',
            """(got 'corpus') (did you mean "uri"?)""",
        ),
        (
            'kind = "word-lm"',
            'kind = "word-lm"\nlayer = 2',
            'permitted (got 2) (did you mean "layers"?)',
        ),
        ("[model]", "[modle]\n[model]", '(did you mean "model"?)'),
        ('method = "dynamic"', 'method = "dynamic"\nper_chanel = true', '(did you mean "per_channel"?)'),
        ('method = "dynamic"', "per_chanel = true", "recipe.1.method: Field required"),
        ('kind = "text"', 'kind = "txt"', '(did you mean "text"?)'),
        ('method = "dynamic"', 'method = "dynamics"', '(did you mean "dynamic"?)'),
        ('"torchscript"', '"torchscrip"', '(did you mean "torchscript"?)'),
        ('method = "dynamic"', 'method = "dynamic"\nmodules = ["LTSM"]', '(did you mean "LSTM"?)'),
    ],
)
@pytest.mark.slow
def test_a_key_or_a_word_that_is_nearly_right_gets_a_proposal(tmp_path, old, new, said):
    assert said in _refused(tmp_path, old, new)


def test_names_of_models_metrics_and_nested_keys_get_proposals(tmp_path):
    examples = ROOT / "docs" / "examples"
    text = (examples / "classifier.toml").read_text(encoding="utf-8").partition("arguments")[0]
    text = text.replace('kind = "factory"', 'kind = "torchvision"').replace("factory = ", "name = ")
    with pytest.raises(ConfigurationError, match=r"model\.torchvision\.name: .*'resnet18'.*did you mean \"resnet"):
        read_workload(_write(tmp_path, text.replace("classifier:build", "resnet999")))
    text = (examples / "photos.toml").read_text(encoding="utf-8") + "[data.transforms]\nmeann = [0.5]\n"
    with pytest.raises(ConfigurationError, match=r'data\.image-folder\.transforms\.meann: .*did you mean "mean"'):
        read_workload(_write(tmp_path, text))
    text = (examples / "power.toml").read_text(encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r'unknown metric "msee" \(did you mean "mse"\?\)'):
        read_workload(_write(tmp_path, text.replace('metric = "mse"', 'metric = "msee"')))


def test_a_workload_that_is_nearly_one_of_ours_gets_a_proposal():
    with pytest.raises(ConfigurationError, match=r'Unknown workload "wordlm" \(did you mean "word-lm"\?\)\.'):
        find_workloads(["wordlm"], BUILT_IN)


def test_a_misspelt_key_where_the_domain_is_missing_too_is_one_message(tmp_path):
    assert "domaim: Extra inputs" in _refused(tmp_path, 'domain = "language-model"', 'domaim = "language-model"')


def floats_of(document: dict[str, Any]) -> Workload:
    return Workload.model_validate(tomllib.loads(GOOD) | document)


def test_twins_are_the_missing_float_candidates_of_the_quantized_runtimes() -> None:
    quantized = {"name": "int8", "method": "dynamic", "runtimes": ["onnxruntime", "torchscript"]}
    plain = {"name": "float", "method": "none", "runtimes": ["torchscript"]}
    other = {"name": "channels-last", "method": "none", "runtimes": ["torchscript"], "memory_format": "channels-last"}
    found = floats_of(
        {"recipe": [other, plain, quantized], "benchmark": {"baseline": "float/torchscript"}}
    ).with_twins()
    assert found.candidates()[:3] == ["channels-last/torchscript", "float/torchscript", "float/onnxruntime"]
    assert [found.twin(name) for name in ("torchscript", "onnxruntime", "openvino")] == [
        "channels-last/torchscript",
        "float/onnxruntime",
        "",
    ]
    added = floats_of({"recipe": [other, quantized], "benchmark": {"baseline": "fastest-float"}}).with_twins()
    assert added.recipe[-1].name == "float"
    assert added.recipe[-1].runtimes == ("onnxruntime",)
    off = floats_of({"recipe": [plain, quantized], "benchmark": {"baseline": "float/torchscript", "twins": False}})
    assert off.with_twins() is off


def test_the_fastest_float_is_the_first_that_can_be_deployed_until_it_is_known() -> None:
    recipes = [{"name": "float", "method": "none", "runtimes": ["eager", "torchscript"]}]
    found = floats_of({"recipe": recipes, "benchmark": {"baseline": "fastest-float"}})
    assert found.baseline() == ("float", "torchscript")
    assert found.with_baseline("float/eager").baseline() == ("float", "eager")
    recipes = [{"name": "float", "method": "none", "runtimes": ["eager"]}]
    with pytest.raises(ValidationError, match="requires a float candidate that can be deployed"):
        floats_of({"recipe": recipes, "benchmark": {"baseline": "fastest-float"}})

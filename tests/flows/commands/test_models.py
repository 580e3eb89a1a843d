"""``nightquant generate`` on a tiny corpus, and ``sensitivity`` on tiny images."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flows.commands import toml
from flows.commands.search import generate, sensitivity
from storage.errors import ConfigurationError
from tests.tasks.text_workloads import text_document, write_corpus


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("generate")
    document = text_document(write_corpus(folder / "corpus"))
    lines = [f"{key} = {toml(value)}" for key, value in document.items()]
    (folder / "tiny.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder


def invoke(place: Path, *arguments: str) -> Result:
    base = ["--workload", str(place / "tiny.toml"), "--store", str(place / "store"), "--words", "20"]
    return CliRunner().invoke(generate, [*base, *arguments], catch_exceptions=True)


def test_text_streams_to_the_terminal_and_a_seed_repeats_it(place: Path) -> None:
    first, second = invoke(place, "--seed", "3"), invoke(place, "--seed", "3")
    assert first.exit_code == 0, first.exception
    assert 10 <= len(first.stdout.split()) <= 20
    assert first.stdout == second.stdout
    assert invoke(place, "--seed", "3", "--recipe", "dynamic-int8").stdout.split()
    assert invoke(place, "--seed", "4").stdout != first.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-2"], "above 0"),
        (["--recipe", "no-such"], "has no recipe"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_sampled_is_refused(place: Path, arguments: list[str], message: str) -> None:
    result = invoke(place, *arguments)
    assert isinstance(result.exception, ConfigurationError)
    assert message in str(result.exception)


WORKLOAD = """
schema_version = 1
name = "tiny"
description = "tiny images"
domain = "image-classification"
[data]
kind = "rendered-characters"
characters = "AH"
image_size = 16
train = 8
calibration = 8
valid = 8
test = 8
[model]
kind = "factory"
factory = "tests.tasks.quantize.networks:plain"
[checkpoint]
kind = "seeded"
[[recipe]]
name = "float"
method = "none"
[[recipe]]
name = "bfloat16"
method = "cast"
runtimes = ["openvino"]
[[recipe]]
name = "static-int8"
method = "static"
calibration_batch_size = 8
"""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "tiny.toml").write_text(WORKLOAD)
    return ["--workload", str(tmp_path / "tiny.toml"), "--store", str(tmp_path / "store")]


@pytest.mark.slow
def test_the_ranking_and_the_effect_of_keeping_layers_are_printed(arguments: list[str]) -> None:
    result = CliRunner().invoke(sensitivity, [*arguments, "--keep", "0,1"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "SQNR (dB)" in result.stdout
    assert "m11" in result.stdout
    assert "kept" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float", "bfloat16"])
def test_a_recipe_that_does_not_quantize_is_refused(arguments: list[str], name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf'no quantizing recipe "{name}".*Use one of these: static-int8\.'):
        CliRunner().invoke(sensitivity, [*arguments, "--recipe", name], catch_exceptions=False)

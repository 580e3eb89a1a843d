"""``nightquant generate`` and ``sensitivity`` on a tiny corpus."""

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


@pytest.mark.slow
def test_layers_are_ranked_with_the_effect_of_keeping_them_and_only_for_recipes_that_quantize(place: Path) -> None:
    base = ["--workload", str(place / "tiny.toml"), "--store", str(place / "store")]
    result = CliRunner().invoke(sensitivity, [*base, "--keep", "0,1"], catch_exceptions=False)
    assert result.exit_code == 0
    for part in ("SQNR (dB)", "decoder", "rnn", "Worst layers kept in float"):
        assert part in result.stdout
    with pytest.raises(ConfigurationError, match=r'no quantizing recipe "float".*Use one of these: dynamic-int8'):
        CliRunner().invoke(sensitivity, [*base, "--recipe", "float"], catch_exceptions=False)

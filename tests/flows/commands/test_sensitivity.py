from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.commands.search import sensitivity as command
from storage.errors import ConfigurationError

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
    result = CliRunner().invoke(command, [*arguments, "--keep", "0,1"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "SQNR (dB)" in result.stdout
    assert "m11" in result.stdout
    assert "kept" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float", "bfloat16"])
def test_a_recipe_that_does_not_quantize_is_refused(arguments: list[str], name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf'no quantizing recipe "{name}".*Use one of these: static-int8\.'):
        CliRunner().invoke(command, [*arguments, "--recipe", name], catch_exceptions=False)

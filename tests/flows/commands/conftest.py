"""A filled store, made once; tests that change it take a copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from flows.cli import main
from tests.flows.commands.filled_store import fill


@pytest.fixture(scope="session")
def two_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return fill(tmp_path_factory.mktemp("filled") / "store")


@pytest.fixture
def filled(two_nights: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(two_nights, tmp_path / "store"))


@pytest.fixture
def nightquant(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run the command line; give its exit code and standard output."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setenv("COLUMNS", "80")
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        code = ended.value.code
        assert isinstance(code, int)
        return code, click.unstyle(capsys.readouterr().out)

    return run

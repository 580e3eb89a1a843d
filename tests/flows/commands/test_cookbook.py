"""Every command of docs/cookbook.md answers, in ``nightquant query`` and in the ``duckdb`` client."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from flows.cli import nightquant
from tests.storage.results.filled import fill

PAGE = (Path(__file__).parents[3] / "docs" / "cookbook.md").read_text(encoding="utf-8")
# A heading such as "### 5. Is tonight worse than before?" and what stands below it.
QUESTIONS = dict(re.findall(r"^### (\d+\. .+?)\n(.+?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
CLIENT = shutil.which("duckdb") or str(Path(sys.executable).with_name("duckdb"))


def commands(language: str, text: str) -> list[str]:
    """The blocks in a language; of a shell's, each command, which may go over several lines."""
    blocks = re.findall(rf"^```{language}\n(.+?)^```", text, re.MULTILINE | re.DOTALL)
    if language != "sh":
        return blocks
    return [
        command for block in blocks for command in re.split(r"^(?=nightquant |duckdb )", block, flags=re.M) if command
    ]


def words(command: str) -> list[str]:
    """The command's words, as bash would pass them."""
    shell = ["bash", "-c", f'printf "%s\\0" {command}']
    return subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``nightquant-store`` is filled."""
    made = tmp_path_factory.mktemp("cookbook")
    fill(made / "nightquant-store")
    return made


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("NIGHTQUANT_STORE", raising=False)


def nightquant_query(arguments: list[str]) -> str:
    done = CliRunner().invoke(nightquant, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_each_question_has_a_number_a_query_and_a_line_on_its_answer() -> None:
    assert [int(heading.partition(".")[0]) for heading in QUESTIONS] == list(range(1, 15))
    assert all(commands("sh", text) for text in QUESTIONS.values())
    assert all(text.rpartition("```")[2].strip() for text in QUESTIONS.values())


@pytest.mark.parametrize("question", list(QUESTIONS))
@pytest.mark.slow
def test_every_query_answers_in_both_programs(question: str, folder: Path) -> None:
    for command in commands("sh", QUESTIONS[question]):
        program, *arguments = words(command)
        if program == "duckdb":
            printed = subprocess.run([CLIENT, *arguments], capture_output=True, text=True, check=True).stdout
            assert len(printed.splitlines()) > 1, command
            continue
        if "-o" in arguments:
            nightquant_query(arguments)
            output = folder / arguments[arguments.index("-o") + 1]
            rows = (
                pq.read_metadata(output).num_rows
                if output.suffix == ".parquet"
                else len(output.read_text(encoding="utf-8").splitlines()) - 1
            )
            assert rows >= 1, command
        ours = nightquant_query(["query", arguments[1], "--format", "csv"])
        shell = [CLIENT, "-readonly", "-csv", "nightquant-store/results.duckdb", arguments[1]]
        theirs = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
        assert len(list(csv.reader(ours.splitlines()))) == len(list(csv.reader(theirs.splitlines()))) > 1, command
        assert ours.splitlines()[0] == theirs.splitlines()[0], command


@pytest.mark.parametrize("program", commands("python", PAGE))
def test_every_program_prints_its_rows(program: str, tmp_path: Path, folder: Path) -> None:
    written = tmp_path / "program.py"
    written.write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, written], cwd=folder, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 1

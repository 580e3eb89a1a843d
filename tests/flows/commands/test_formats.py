"""Every command that prints something prints it as one JSON document where it is asked to, and nothing beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from flows.cli import COMMANDS, LazyGroup
from storage.bundles import BundleStore
from tests.flows.commands.filled_store import NIGHTS, RUNS, VERSIONS

NightQuant = Callable[..., tuple[int, str]]

# It runs for good.
WITHOUT = {"serve"}

# By command: what it is called with, in a store of two nights, and the exit code.
CALLS: dict[str, tuple[list[str], int]] = {
    "status": ([], 0),
    "workloads": ([], 0),
    "show": (["word-lm"], 0),
    "compare": ([RUNS[0], NIGHTS[1].isoformat()], 0),
    "query": (["from leaderboard"], 0),
    "report": (["-o", "{folder}/report.html"], 0),
    "config": ([], 0),
    "handoff list": ([], 0),
    "handoff show": (["word-lm"], 0),
    "handoff verify": (["{bundle}"], 1),  # its model is a text
    "handoff promote": (["word-lm", VERSIONS[1], "--reason", "known to work"], 0),
    "handoff rollback": (["word-lm", "--to", VERSIONS[1], "--reason", "worse"], 0),
    "handoff export": (["word-lm", "-o", "{folder}/word-lm.zip"], 0),
    "store check": ([], 0),
    "store compact": ([], 0),
    "store gc": (["--dry-run"], 0),
}
# Those that compute for longer, or need a store of their own: their own modules hold them to the same.
ELSEWHERE = {
    "nightly",
    "acknowledge",
    "doctor",
    "generate",
    "handoff sign",
    "init",
    "search",
    "sensitivity",
    "operations install",
    "operations check",
}
_WITHOUT_STORE = {"workloads", "config", "handoff verify"}


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = LazyGroup.load(name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", each) for sub, each in command.commands.items())
        else:
            yield name, command


def test_every_command_offers_json_and_is_tested() -> None:
    offered = {
        name
        for name, command in commands()
        for option in command.params
        if option.name == "format" and isinstance(option.type, click.Choice) and "json" in option.type.choices
    }
    assert offered >= CALLS.keys() | ELSEWHERE
    assert {name for name, _ in commands()} == CALLS.keys() | ELSEWHERE | WITHOUT


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in commands()])
@pytest.mark.slow
def test_every_commands_help_has_an_example(name: str, command: click.Command) -> None:
    with click.Context(command, info_name=f"nightquant {name}") as context:
        shown = command.get_help(context)
    assert "Example" in shown
    assert f"nightquant {name}" in shown


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.slow
def test_json_is_one_document_on_standard_output(
    name: str, filled: Path, tmp_path: Path, nightquant: NightQuant
) -> None:
    arguments, expected = CALLS[name]
    places = {"bundle": BundleStore(filled).local_folder("word-lm", VERSIONS[0]), "folder": tmp_path}
    given = [*name.split(), *(argument.format(**places) for argument in arguments), "--format", "json"]
    code, shown = nightquant(*given, *([] if name in _WITHOUT_STORE else ["--store", filled]))
    assert code == expected
    assert json.loads(shown)


@pytest.mark.slow
def test_a_message_beside_json_goes_to_standard_error(filled: Path) -> None:
    arguments = ["handoff", "promote", "word-lm", VERSIONS[0], "--reason", "again", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "flows", *arguments, "--store", str(filled)],
        capture_output=True, text=True, check=True, timeout=120, env=dict(os.environ),
    )  # fmt: skip
    assert json.loads(done.stdout)["version"] == VERSIONS[0]
    assert "already current" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "no-such"],
        ["compare", "2020-01-01", RUNS[1]],
        ["handoff", "promote", "word-lm", "2026-03-09-00000000000c", "--reason", "x"],
        ["handoff", "promote", "word-lm", VERSIONS[1]],
        ["handoff", "promote", "word-lm", VERSIONS[1], "--reason", "  "],
        ["status", "--format", "yaml"],
    ],
)
def test_a_wrong_request_ends_with_2_and_prints_no_document(
    arguments: list[str], two_nights: Path, nightquant: NightQuant
) -> None:
    assert nightquant(*arguments, "--store", two_nights) == (2, "")

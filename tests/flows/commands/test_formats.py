"""What a command shows is one JSON document where it is asked for, and nothing beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from flows.cli import COMMANDS, LazyGroup
from storage.bundles import BundleStore
from tests.flows.commands.filled_store import NIGHTS, RUNS, VERSIONS

NightQuant = Callable[..., tuple[int, str]]

# By command: what it is called with, in a store of two nights, and the exit code.
CALLS: dict[str, tuple[list[str], int]] = {
    "status": ([], 0),
    "compare": ([RUNS[0], NIGHTS[1].isoformat()], 0),
    "query": (["from leaderboard"], 0),
    "handoff list": ([], 0),
    "handoff verify": (["{bundle}"], 1),  # its model is a text
}
# Those that compute for longer: their own modules hold them to the same.
ELSEWHERE = {"nightly", "search", "doctor"}


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = LazyGroup.load(name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", each) for sub, each in command.commands.items())
        else:
            yield name, command


def test_json_of_every_command_that_offers_it_is_tested() -> None:
    offered = {
        name
        for name, command in commands()
        for option in command.params
        if option.name == "format" and isinstance(option.type, click.Choice) and "json" in option.type.choices
    }
    assert offered == CALLS.keys() | ELSEWHERE


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in commands()])
@pytest.mark.slow
def test_every_commands_help_has_an_example(name: str, command: click.Command) -> None:
    with click.Context(command, info_name=f"nightquant {name}") as context:
        shown = command.get_help(context)
    assert "Example" in shown
    assert f"nightquant {name}" in shown


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.slow
def test_json_is_one_document_on_standard_output(name: str, two_nights: Path, nightquant: NightQuant) -> None:
    arguments, expected = CALLS[name]
    bundle = BundleStore(two_nights).local_folder("word-lm", VERSIONS[0])
    given = [*name.split(), *(argument.format(bundle=bundle) for argument in arguments), "--format", "json"]
    code, shown = nightquant(*given, *([] if name == "handoff verify" else ["--store", two_nights]))
    assert code == expected
    assert json.loads(shown)


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "no-such"],
        ["compare", "2020-01-01", RUNS[1]],
        ["handoff", "promote", "word-lm", "2026-03-09-00000000000c", "--reason", "x"],
        ["handoff", "promote", "word-lm", VERSIONS[1]],
        ["handoff", "list", "resnet18"],
        ["handoff", "show", "word-lm", "2026-03-09-00000000000c"],
        ["handoff", "rollback", "../word-lm", "--reason", "x"],
        ["status", "--format", "yaml"],
        ["status", "--max-age", "1 week"],
    ],
)
def test_a_wrong_request_ends_with_2_and_prints_no_document(
    arguments: list[str], two_nights: Path, nightquant: NightQuant
) -> None:
    assert nightquant(*arguments, "--store", two_nights) == (2, "")

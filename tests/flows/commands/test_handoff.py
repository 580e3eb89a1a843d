from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flows.commands.handoff import command
from storage.bundles import BundleStore
from storage.errors import ConflictError
from tests.storage.bundle_files import key_file, publish, signer_of, version


@pytest.fixture
def store(tmp_path: Path) -> Path:
    bundles = BundleStore(tmp_path / "store")
    for number in (1, 2):
        publish(bundles, number)
    return tmp_path / "store"


def invoke(*arguments: str | Path, store: Path | None = None) -> Result:
    given: Sequence[str] = [str(argument) for argument in arguments]
    return CliRunner().invoke(command, [*given, *(["--store", str(store)] if store else [])])


def test_list_shows_every_bundle_and_which_is_current(store: Path):
    first, second = invoke("list", "word-lm", store=store).output.splitlines()
    assert first.split()[1:] == [version(1), str(store / "handoff/word-lm" / version(1))]
    assert second.split()[1:3] == [version(2), "current"]


@pytest.mark.slow
def test_rollback_switches_and_keeps_who_and_why(store: Path):
    result = invoke("rollback", "word-lm", "--reason", "worse", "--by", "someone", store=store)
    assert result.exit_code == 0, result.output
    assert version(1) in result.output
    history = json.loads(invoke("show", "word-lm", "--history", store=store).output)
    assert history["version"] == version(1)
    assert (history["history"][-1]["by"], history["history"][-1]["reason"]) == ("someone", "worse")


def test_rollback_fails_if_the_named_bundle_is_not_current(store: Path):
    asked = ("rollback", "word-lm", "--from", version(2), "--reason", "worse")
    publish(BundleStore(store), 3)
    error = invoke(*asked, store=store).exception
    assert isinstance(error, ConflictError)
    assert error.exit_code == 1
    assert error.message.startswith(f'The current bundle of "word-lm" is {version(3)} now (promote by a test, ')
    assert error.message.endswith(f"but this change was requested while {version(2)} was current. Nothing was changed.")
    invoke("rollback", "word-lm", "--from", version(3), "--reason", "worse", store=store)
    assert (
        invoke(*asked, store=store).output
        == f"word-lm: the current version is {version(1)}.\nWithdrawn: {version(2)}, {version(3)}.\n"
    )


@pytest.mark.parametrize(
    ("switch", "is_signed", "changed"),
    [
        (("rollback", "word-lm", "--to"), False, "nothing was changed"),
        (("promote", "word-lm"), True, "only its signature was renewed"),
    ],
    ids=["rollback", "promote"],
)
def test_a_switch_to_the_current_bundle_says_what_it_changes(
    switch: tuple[str, ...], is_signed: bool, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if is_signed:
        monkeypatch.setenv("NIGHTQUANT_SIGNING_KEY", str(key_file()))
    bundles = BundleStore(tmp_path, signer_of() if is_signed else None)
    current = publish(bundles, 1)
    before = bundles.pointer("word-lm")
    result = invoke(*switch, current, "--reason", "worse", store=tmp_path)
    assert result.exit_code == 0
    assert result.stderr == f"The bundle {current} is already current; {changed}.\n"
    assert result.stdout == f"word-lm: the current version is {current}.\n"
    assert (bundles.pointer("word-lm") == before) is not is_signed


def test_verify_of_a_damaged_bundle_ends_with_1_and_names_the_file(store: Path):
    folder = BundleStore(store).local_folder("word-lm", version(2))
    (folder / "more.bin").touch()
    result = invoke("verify", folder)
    assert result.exit_code == 1
    assert "more.bin" in result.output
    assert json.loads(invoke("verify", folder, "--format", "json").output)["stage"] == "files"

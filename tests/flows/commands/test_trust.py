"""A deployment team that pulls from a hostile mirror gets the current bundle or an error."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flows.commands.handoff import command
from storage.bundles import BundleStore
from storage.errors import ConfigurationError
from storage.pointer import read_current
from tests.storage.bundle_files import key_file, signer_of
from tests.tasks.publish.conftest import make

pytestmark = pytest.mark.slow


def handoff(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def verified(served: Path, *more: str | Path) -> dict[str, object]:
    key = key_file().with_suffix(".pub")
    done = handoff("verify", served, "-w", "tiny", "--public-key", key, "--format", "json", *more)
    found: dict[str, object] = json.loads(done.output)
    assert done.exit_code == (0 if found["ok"] else 1)
    return found


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What a mirror may serve of the workload ``tiny``: the folders of two nights, both signed, beside the store."""
    folder = tmp_path_factory.mktemp("mirror")
    bundles = BundleStore(folder / "store", signer_of())
    for name, seed in (("first", 29592), ("second", 1)):
        make(folder / f"artifacts-{name}", seed=seed).package(bundles)
        shutil.copytree(folder / "store/handoff/tiny", folder / name)
    return folder / "first", folder / "second"


def copied(folder: Path, target: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(folder, target)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def test_yesterdays_pointer_is_refused_after_todays_was_read(nights: tuple[Path, Path], tmp_path: Path):
    state = ("--state", tmp_path / "seen.json")
    first, second = nights
    yesterday = verified(first, *state)
    # Today's was exported, and comes with a copy of the pointer.
    shown = handoff("show", "tiny", "--history", "--store", nights[0].parent / "store").output
    (tmp_path / "current.json").write_text(shown)
    exported = Path(shutil.copytree(second / json.loads(shown)["version"], tmp_path / "exported"))
    today = verified(exported, *state)
    assert (yesterday["ok"], today["ok"], today["signature"]) == (True, True, "valid")
    assert yesterday["version"] != today["version"]
    put_back = verified(first, *state)
    assert (put_back["stage"], "old copy" in str(put_back["problem"])) == ("pointer", True)


def test_the_model_cards_command_checks_the_signature(nights: tuple[Path, Path], tmp_path: Path):
    (bundle,) = copied(nights[0], tmp_path / "served").glob("2026-*")
    card = (bundle / "MODEL_CARD.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    (model_signing .*)$", card, re.MULTILINE)
    command = shlex.split(line.replace("KEY.pem", str(key_file().with_suffix(".pub"))))
    command[0] = str(Path(sys.executable).with_name(command[0]))
    assert subprocess.run(command, cwd=bundle, capture_output=True, check=False).returncode == 0
    (bundle / "model.ts").write_bytes(b"evil")
    assert subprocess.run(command, cwd=bundle, capture_output=True, check=False).returncode == 1


def test_parts_of_different_bundles_are_refused(nights: tuple[Path, Path], tmp_path: Path):
    first, second = nights
    mixed = copied(second, tmp_path / "served")
    (older,) = (path.name for path in first.glob("2026-*"))
    newer = json.loads((mixed / "current.json").read_text())["version"]
    shutil.rmtree(mixed / newer)
    (mixed / older).rename(mixed / newer)
    found = verified(mixed)
    assert (found["stage"], "which the signed current.json names" in str(found["problem"])) == ("signature", True)
    (mixed / newer / "model.ts").write_bytes((second / newer / "model.ts").read_bytes())
    assert verified(mixed)["stage"] == "files"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--state", "seen.json"), "--workload"),
        (("--workload", "tiny"), "--public-key"),
    ],
)
def test_wrong_requests_are_refused(arguments: tuple[str, ...], why: str, tmp_path: Path):
    done = handoff("verify", tmp_path, *arguments)
    assert why in done.output or why in str(done.exception)
    assert done.exit_code == 2 or isinstance(done.exception, ConfigurationError)


def test_a_person_signs_the_current_bundle(nights: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    where = ("--store", str(shutil.copytree(nights[0].parent / "store", tmp_path / "store")))
    monkeypatch.delenv("NIGHTQUANT_SIGNING_KEY", raising=False)
    assert isinstance(handoff("sign", "tiny", *where).exception, ConfigurationError)
    monkeypatch.setenv("NIGHTQUANT_SIGNING_KEY", str(key_file()))
    signed = handoff("sign", "tiny", *where)
    assert "which is current; the digest of SHA256SUMS is" in signed.output, signed.exception
    read_current(tmp_path / "store/handoff/tiny/current.json", "tiny", signer_of().key.public_key())

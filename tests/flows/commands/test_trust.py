"""A deployment team that pulls from a hostile mirror gets the current bundle or an error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flows.commands.handoff import command
from storage.bundles import BundleStore
from storage.errors import BundleError, ConfigurationError
from storage.pointer import stated
from storage.seal import SIGNATURE
from storage.trust import public_keys
from tests.storage.bundle_files import pem, promote, public_key_text, publish, signer_of, version
from tests.tasks.bundle.conftest import make

pytestmark = pytest.mark.slow
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes(range(start, start + 32))) for start in (0, 1))


def handoff(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@dataclass(frozen=True)
class Mirror:
    """What a mirror may serve of the workload ``tiny``: all of it was signed at some time, or is another's."""

    first: Path  # the handed-over folder on the first night
    second: Path  # and on the second
    keys: tuple[Path, Path]

    def verify(self, served: Path, *more: str | Path) -> dict[str, object]:
        done = handoff("verify", served, "-w", "tiny", "--public-key", self.keys[0], "--format", "json", *more)
        found: dict[str, object] = json.loads(done.output)
        assert done.exit_code == (0 if found["ok"] else 1)
        return found


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Mirror:
    folder = tmp_path_factory.mktemp("mirror")
    for name, seed in (("first", 29592), ("second", 1)):
        made = make(folder / f"artifacts-{name}", seed=seed)
        made.package(BundleStore(folder / "store", signer_of(KEY)))
        shutil.copytree(folder / "store/handoff/tiny", folder / name)
    for name, key in (("key.pub", KEY), ("other.pub", OTHER)):
        (folder / name).write_text(public_key_text(key))
    return Mirror(folder / "first", folder / "second", (folder / "key.pub", folder / "other.pub"))


@pytest.fixture
def served(mirror: Mirror, tmp_path: Path) -> Callable[[Path], Path]:
    def copy(of: Path) -> Path:
        target = Path(shutil.copytree(of, tmp_path / "served" / of.name))
        for path in target.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return target

    return copy


def test_what_was_true_yesterday_is_refused_once_today_was_seen(mirror: Mirror, tmp_path: Path):
    state = ("--state", tmp_path / "seen.json")
    yesterday = mirror.verify(mirror.first, *state)
    # Today's was exported, and comes with a copy of the pointer.
    shown = handoff("show", "tiny", "--history", "--store", mirror.first.parent / "store").output
    (tmp_path / "tiny.json").write_text(shown)
    exported = shutil.copytree(mirror.second / json.loads(shown)["version"], tmp_path / "exported")
    today = mirror.verify(exported, "--pointer", tmp_path / "tiny.json", *state)
    assert (yesterday["ok"], today["ok"], today["signature"]) == (True, True, "valid")
    assert yesterday["version"] != today["version"]
    rolled_back = mirror.verify(mirror.first, *state)
    assert (rolled_back["stage"], "old copy" in str(rolled_back["problem"])) == ("pointer", True)


def test_a_mirror_that_stands_still_is_found_out(mirror: Mirror, tmp_path: Path):
    store = tmp_path / "store"
    publish(BundleStore(store, signer_of(KEY, days=1e-9)), 1, "tiny")
    frozen = mirror.verify(store / "handoff/tiny")
    assert (frozen["stage"], "of tiny expired at" in str(frozen["problem"])) == ("pointer", True)
    assert "the minimum version is" in str(mirror.verify(mirror.second, "--min-version", "2026-11-22")["problem"])


def test_parts_of_different_bundles_are_no_bundle(mirror: Mirror, served: Callable[[Path], Path]):
    mixed = served(mirror.second)
    older, newer = (
        sorted(mirror.first.glob("2026-*"))[0].name,
        json.loads((mixed / "current.json").read_text())["version"],
    )
    shutil.rmtree(mixed / newer)
    (mixed / older).rename(mixed / newer)
    found = mirror.verify(mixed)
    assert (found["stage"], "differs from the SHA256SUMS of" in str(found["problem"])) == ("signature", True)
    (mixed / newer / "model.ts").write_bytes((mirror.second / newer / "model.ts").read_bytes())
    assert mirror.verify(mixed)["stage"] == "files"
    shutil.rmtree(mixed / newer)
    assert mirror.verify(mixed)["stage"] == "files"


def test_another_workloads_bundle_is_refused_although_it_is_signed(mirror: Mirror, tmp_path: Path):
    publish(BundleStore(tmp_path, signer_of(KEY)), 1, "cheap")
    found = mirror.verify(tmp_path / "handoff/cheap")
    assert (found["stage"], "of cheap, but the expected workload is tiny" in str(found["problem"])) == ("pointer", True)


def test_who_has_another_key_or_none_says_nothing_about_what_is_current(
    mirror: Mirror, served: Callable[[Path], Path], tmp_path: Path
):
    publish(BundleStore(tmp_path, signer_of(OTHER)), 1, "tiny")
    assert "has valid signatures for only 0" in str(mirror.verify(tmp_path / "handoff/tiny")["problem"])
    unsigned = served(mirror.first)
    document = json.loads((unsigned / "current.json").read_text())
    del document["signed"]
    (unsigned / "current.json").write_text(json.dumps(document))
    problem = str(mirror.verify(unsigned)["problem"])
    assert "not signed" in problem
    assert "nightquant handoff sign tiny" in problem
    (unsigned / "current.json").unlink()
    (bundle,) = unsigned.iterdir()
    assert mirror.verify(bundle)["stage"] == "pointer"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--max-age", "1h"), "--workload"),
        (("--workload", "tiny"), "--public-key"),
        (("--workload", "tiny", "--public-key", "none.pub"), "none.pub"),
        (("--min-version", "newest", "--workload", "tiny"), "neither a version nor a date"),
    ],
)
def test_wrong_requests(arguments: tuple[str, ...], why: str, tmp_path: Path):
    done = handoff("verify", tmp_path, *arguments)
    assert why in done.output or why in str(done.exception)
    assert done.exit_code == 2 or isinstance(done.exception, ConfigurationError)


def test_a_person_vouches_for_an_old_store_and_another_machine_adds_its_signature(
    mirror: Mirror, served: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = served(mirror.first).rename(tmp_path / "tiny")
    (bundle,) = folder.glob("2026-*")
    (bundle / SIGNATURE).unlink()
    (folder / "current.json").unlink()
    (tmp_path / "store" / "handoff").mkdir(parents=True)
    folder.rename(tmp_path / "store" / "handoff" / "tiny")
    promote(BundleStore(tmp_path / "store"), bundle.name, "tiny")
    where = ("--store", str(tmp_path / "store"))
    monkeypatch.delenv("NIGHTQUANT_SIGNING_KEY", raising=False)
    assert isinstance(handoff("sign", "tiny", *where).exception, ConfigurationError)
    monkeypatch.setenv("NIGHTQUANT_SIGNING_KEY", pem(KEY))
    signed = handoff("sign", "tiny", *where)
    assert "which is current; SHA256SUMS has the digest" in signed.output, signed.exception
    monkeypatch.setenv("NIGHTQUANT_SIGNING_KEY", pem(OTHER))
    added = json.loads(handoff("sign", "tiny", "--public-key", mirror.keys[0], "--format", "json", *where).output)
    assert (added["version"], added["is_current"]) == (bundle.name, True)
    pointer = tmp_path / "store/handoff/tiny/current.json"
    assert stated(pointer, "tiny", public_keys(mirror.keys), threshold=2).version == bundle.name


def test_nobody_vouches_for_a_bundle_that_is_not_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    publish(BundleStore(tmp_path), 1, "tiny")
    monkeypatch.setenv("NIGHTQUANT_SIGNING_KEY", pem(KEY))
    done = handoff("sign", "tiny", version(1), "--store", tmp_path)
    assert isinstance(done.exception, BundleError)
    assert "was not signed" in str(done.exception)

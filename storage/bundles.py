"""Bundles under ``<root>/handoff/``: immutable folders, and one mutable file for each workload.

``handoff/<workload>/<version>/`` appears whole or not at all: a local one in one rename, one on an object store with
``SHA256SUMS`` as its last object, without which no reader takes it for a bundle. ``handoff/<workload>/current.json``
is replaced in one step, after the bundle that it names is there.
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from storage.checksums import SUMS, check_sums
from storage.current import Current, Switch
from storage.errors import ConfigurationError, StoreError, unwritable
from storage.root import StoreRoot, cache_folder, fsync, url_key

_WORKLOAD = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}-[0-9a-f]{12}")
_ABANDONED_S = 24 * 3600


@dataclass(frozen=True)
class BundleEntry:
    """A bundle in the store; ``location`` is its folder relative to the root."""

    workload: str
    version: str
    is_current: bool
    is_withdrawn: bool

    @property
    def location(self) -> str:
        """The bundle's folder, relative to the store's root."""
        return f"handoff/{self.workload}/{self.version}"


class BundleStore:
    """Bundles of one store, local or remote."""

    def __init__(self, place: StoreRoot | Path | str) -> None:
        self.root = StoreRoot.of(place)

    def workloads(self) -> list[str]:
        """Names of the workloads that have a bundle."""
        return sorted({workload for workload, _ in self._bundles("handoff")})

    def versions(self, workload: str) -> list[str]:
        """Versions of a workload's bundles, oldest night first; [] where there is none."""
        return sorted(version for _, version in self._bundles(f"handoff/{_checked(workload, _WORKLOAD)}"))

    def entries(self, workload: str | None = None) -> list[BundleEntry]:
        """Every bundle, or those of one workload."""
        found = []
        for name in self.workloads() if workload is None else [workload]:
            current = self.current(name)
            for version in self.versions(name):
                is_current = current is not None and version == current.version
                is_withdrawn = current is not None and version in current.withdrawn
                found.append(BundleEntry(name, version, is_current, is_withdrawn))
        return found

    def current(self, workload: str) -> Current | None:
        """The current bundle's pointer; None where nothing was promoted yet.

        Raises
        ------
        StoreError
            ``current.json`` is damaged.
        """
        name = f"handoff/{_checked(workload, _WORKLOAD)}/current.json"
        try:
            return Current.model_validate_json(self.root.read(name))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StoreError(
                f"{self.root.uri(name)} is damaged: {error.error_count()} of its values are wrong.",
                hint="Restore it from a copy, or remove it and promote anew.",
            ) from error

    def require(self, workload: str, version: str | None = None) -> str:
        """The version asked for, or the current one.

        Raises
        ------
        ConfigurationError
            There is no such workload or version.
        """
        known = self.versions(workload)
        if not known:
            raise ConfigurationError(
                f'No bundle of "{workload}" in {self.root.url}.',
                hint=f"Bundles there are of: {', '.join(self.workloads()) or 'nothing yet'}.",
            )
        current = self.current(workload)
        wanted = version or (current.version if current else None)
        if wanted is None:
            raise ConfigurationError(f'"{workload}" has no current bundle.', hint=f"Name one of: {', '.join(known)}.")
        if wanted not in known:
            raise ConfigurationError(f'No bundle {wanted} of "{workload}".', hint=f"There are: {', '.join(known)}.")
        return wanted

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """An empty folder in which to fill a bundle; removed at the end unless :meth:`publish` took it."""
        drafts = self._drafts()
        try:
            drafts.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(drafts)
            folder = drafts / uuid.uuid4().hex
            folder.mkdir()
        except OSError as error:
            raise unwritable(self.root.url, error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, draft: Path, workload: str, version: str) -> bool:
        """Make a sealed draft visible as a bundle; False where that version is there already, which then stays.

        Raises
        ------
        BundleError
            The draft does not hold what its ``SHA256SUMS`` says.
        StoreError
            The store cannot be written.
        """
        location = f"handoff/{_checked(workload, _WORKLOAD)}/{_checked(version, _VERSION)}"
        check_sums(draft)
        if self.root.exists(f"{location}/{SUMS}"):
            return False
        if self.root.local is not None:
            return _rename(self.root, draft, self.root.local / location)
        names = sorted((path.name for path in draft.iterdir()), key=lambda name: (name == SUMS, name))
        for name in names:
            self.root.put(f"{location}/{name}", draft / name)
        return True

    def promote(self, workload: str, version: str, *, by: str, reason: str) -> Current:
        """Switch to a bundle that the night chose, unless it is current already or was withdrawn.

        Raises
        ------
        BundleError
            The bundle does not hold what its ``SHA256SUMS`` says.
        """
        return self._switch("promote", workload, version, by=by, reason=reason)

    def roll_back(self, workload: str, version: str | None = None, *, by: str, reason: str) -> Current:
        """Switch to an earlier bundle (any named one, or the one before), and withdraw the one that was current.

        Raises
        ------
        ConfigurationError
            There is no such workload or version, or nothing to go back to.
        BundleError
            The bundle to go back to does not hold what its ``SHA256SUMS`` says.
        """
        self.require(workload, version)
        if version is None:
            current = self.current(workload)
            before = current.previous() if current is not None else None
            if before is None:
                raise ConfigurationError(
                    f'"{workload}" has no earlier bundle to go back to.', hint="Name one with --to."
                )
            version = before.version
        return self._switch("rollback", workload, version, by=by, reason=reason)

    def local_folder(self, workload: str, version: str) -> Path:
        """The bundle's folder on this machine; one on an object store is copied to the cache.

        Raises
        ------
        ConfigurationError
            There is no such workload or version.
        """
        location = f"handoff/{workload}/{self.require(workload, version)}"
        if self.root.local is not None:
            return self.root.local / location
        target = cache_folder() / url_key(self.root.url) / location
        with self.draft() as draft:
            for entry in self.root.list(location):
                self.root.download(entry.name, draft / Path(entry.name).name)
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            draft.rename(target)
        return target

    def _switch(self, action: str, workload: str, version: str, *, by: str, reason: str) -> Current:
        with self.root.lock(f"handoff-{_checked(workload, _WORKLOAD)}"):
            before = self.current(workload)
            if before is not None and (
                version == before.version or (action == "promote" and version in before.withdrawn)
            ):
                return before
            # What current.json points to must be good at the moment of the switch, whoever touched it meanwhile.
            sums = check_sums(self.local_folder(workload, version))
            switch = Switch.model_validate(
                {"action": action, "version": version, "sha256sums": sums, "at": _now(), "by": by, "reason": reason}
            )
            after = Current.first(workload, switch) if before is None else before.after(switch)
            content = after.model_dump_json(indent=1) + "\n"
            self.root.put(f"handoff/{workload}/current.json", content.encode())
            return after

    def _bundles(self, prefix: str) -> Iterator[tuple[str, str]]:
        for entry in self.root.list(prefix):
            parts = entry.name.split("/")
            if len(parts) == 4 and parts[3] == SUMS and _WORKLOAD.fullmatch(parts[1]) and _VERSION.fullmatch(parts[2]):
                yield parts[1], parts[2]

    def _drafts(self) -> Path:
        # Beside the bundles, so that publishing is a rename; a remote store's drafts lie in the cache.
        base = self.root.local or cache_folder() / url_key(self.root.url)
        return base / "handoff" / ".tmp" if self.root.local else base / "drafts"


def _rename(root: StoreRoot, draft: Path, final: Path) -> bool:
    try:
        for path in draft.iterdir():
            path.chmod(0o444)
            fsync(path)
        fsync(draft)
        final.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(final)
        fsync(final.parent)
    except OSError as error:
        if (final / SUMS).is_file():
            return False
        raise unwritable(root.url, error) from error
    return True


def _remove_abandoned(drafts: Path) -> None:
    """Remove what killed publishers left a day or more ago."""
    for folder in drafts.iterdir():
        try:
            age_s = time.time() - folder.stat().st_mtime
        except FileNotFoundError:  # its publisher has just made a bundle of it
            continue
        if age_s > _ABANDONED_S:
            shutil.rmtree(folder, ignore_errors=True)


def _checked(name: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name of a workload or of a bundle's version.")
    return name


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)

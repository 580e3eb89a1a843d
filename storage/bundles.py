"""Bundles under ``<root>/handoff/``: immutable folders, and a mutable ``current.json`` for each workload.

``handoff/<workload>/<version>/`` appears in one step (on an object store with its last object, ``SHA256SUMS``), and
``current.json`` is replaced in one step, after the bundle that it names is there.
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.errors import ConfigurationError, StoreError, unwritable
from storage.root import StoreRoot, cache_folder
from storage.seal import SUMS, check_name, check_sums

_WORKLOAD = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}-[0-9a-f]{12}")
_ABANDONED_S = 24 * 3600
_Action = Literal["promote", "promote-by-hand", "rollback"]


class Switch(BaseModel):
    """One change of the current bundle: to what, when, by whom and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: _Action
    version: str
    sha256sums: str
    at: datetime
    by: str
    reason: str


class Pointer(BaseModel):
    """``current.json``: the bundle that is deployed, with every switch that led to it, oldest first.

    ``sha256sums``, the digest of the bundle's ``SHA256SUMS``, names its content. ``withdrawn`` lists the versions that
    people rolled back from, which no night promotes again by itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    workload: str
    version: str
    sha256sums: str
    withdrawn: tuple[str, ...] = ()
    history: tuple[Switch, ...]


@dataclass(frozen=True)
class BundleEntry:
    """A bundle in the store."""

    workload: str
    version: str
    is_current: bool
    is_withdrawn: bool

    @property
    def location(self) -> str:
        """The bundle's folder, relative to the store's root."""
        return f"handoff/{self.workload}/{self.version}"


class BundleStore:
    """Bundles of one store, local or remote.

    Its methods raise `ConfigurationError` for an unknown workload or version, and `BundleError` for a bundle that is
    not what its ``SHA256SUMS`` says.
    """

    def __init__(self, place: StoreRoot | Path | str) -> None:
        self.root = StoreRoot.of(place)

    def workloads(self) -> list[str]:
        """Names of the workloads that have a bundle."""
        return sorted({workload for workload, _ in self._bundles("handoff")})

    def versions(self, workload: str) -> list[str]:
        """Versions of a workload's bundles, oldest night first; [] if there is none."""
        return sorted(version for _, version in self._bundles(_location(workload)))

    def entries(self, workload: str | None = None) -> list[BundleEntry]:
        """Every bundle, or those of one workload."""
        found = []
        for name in self.workloads() if workload is None else [workload]:
            pointer = self.pointer(name)
            current, withdrawn = (pointer.version, pointer.withdrawn) if pointer else (None, ())
            found += [
                BundleEntry(name, version, version == current, version in withdrawn) for version in self.versions(name)
            ]
        return found

    def pointer(self, workload: str) -> Pointer | None:
        """The pointer to the workload's current bundle; None if nothing has been promoted yet."""
        name = f"{_location(workload)}/current.json"
        try:
            return Pointer.model_validate_json(self.root.read(name))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise StoreError(
                f"{self.root.uri(name)} is damaged: {error.error_count()} of its values are wrong.",
                hint="Restore it from a copy, or remove it and promote again.",
            ) from error

    def require(self, workload: str, version: str | None = None) -> str:
        """The version asked for, or the current one."""
        known = self.versions(workload)
        if not known:
            raise ConfigurationError(
                f'No bundle of "{workload}" in {self.root.url}.',
                hint=f"There are bundles of: {', '.join(self.workloads()) or 'nothing yet'}.",
            )
        if version is None:
            pointer = self.pointer(workload)
            if pointer is None:
                raise ConfigurationError(
                    f'"{workload}" has no current bundle.', hint=f"Name one of: {', '.join(known)}."
                )
            version = pointer.version
        if version not in known:
            raise ConfigurationError(f'No bundle {version} of "{workload}".', hint=f"There are: {', '.join(known)}.")
        return version

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield an empty folder in which to fill a bundle; it is removed unless :meth:`publish` took it."""
        # Beside the bundles, so that publishing is a rename; a remote store's drafts are in the cache.
        drafts = self.root.local / "handoff" / ".tmp" if self.root.local else cache_folder(self.root.url) / "drafts"
        folder = drafts / uuid.uuid4().hex
        try:
            drafts.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(drafts)
            folder.mkdir()
        except OSError as error:
            raise unwritable(self.root.url, error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def publish(self, draft: Path, workload: str, version: str) -> bool:
        """Make a sealed draft visible as a bundle; False if that version is there already, which then stays."""
        location = _location(workload, version)
        check_sums(draft)
        for path in draft.iterdir():
            path.chmod(0o444)
        return self.root.publish(draft, location, SUMS)

    def promote(self, workload: str, version: str, *, by: str, reason: str) -> Pointer:
        """Switch to a bundle that the night chose, unless it is current already or was withdrawn."""
        return self._switch("promote", workload, version, by=by, reason=reason)

    def promote_by_hand(self, workload: str, version: str, *, by: str, reason: str) -> Pointer:
        """Switch to any bundle, a withdrawn one too, which is then in service again; what was current may return."""
        self.require(workload, version)
        return self._switch("promote-by-hand", workload, version, by=by, reason=reason)

    def roll_back(self, workload: str, version: str | None = None, *, by: str, reason: str) -> Pointer:
        """Switch to an earlier bundle (any named one, or the previous), and withdraw the one that was current."""
        self.require(workload, version)
        if version is None:
            if pointer := self.pointer(workload):
                passed_over = {pointer.version, *pointer.withdrawn}
                earlier = (switch.version for switch in reversed(pointer.history))
                version = next((name for name in earlier if name not in passed_over), None)
            if version is None:
                raise ConfigurationError(
                    f'"{workload}" has no earlier bundle to go back to.', hint="Name one with --to."
                )
        return self._switch("rollback", workload, version, by=by, reason=reason)

    def local_folder(self, workload: str, version: str) -> Path:
        """The bundle's folder on this machine; one on an object store is copied to the cache."""
        location = _location(workload, self.require(workload, version))
        if self.root.local is not None:
            return self.root.local / location
        target = cache_folder(self.root.url) / location
        with self.downloaded(location) as copy:
            shutil.rmtree(target, ignore_errors=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy.rename(target)
        return target

    @contextmanager
    def downloaded(self, location: str) -> Iterator[Path]:
        """Yield a temporary copy of a bundle's folder, whatever it holds."""
        with self.draft() as copy:
            for entry in self.root.list(location):
                name = entry.name.removeprefix(f"{location}/")
                check_name(self.root.uri(location), name)
                self.root.download(entry.name, copy / name)
            yield copy

    def _switch(self, action: _Action, workload: str, version: str, *, by: str, reason: str) -> Pointer:
        location = _location(workload)
        with self.root.lock(f"handoff-{workload}"):
            before = self.pointer(workload)
            if before is not None and (
                version == before.version or (action == "promote" and version in before.withdrawn)
            ):
                return before
            # The bundle must be good at the moment of the switch, whatever has touched it meanwhile.
            sums = check_sums(self.local_folder(workload, version))
            now = datetime.now(UTC).replace(microsecond=0)
            switch = Switch(action=action, version=version, sha256sums=sums, at=now, by=by, reason=reason)
            after = Pointer(workload=workload, version=version, sha256sums=sums, history=(switch,))
            if before is not None:
                left = {before.version} if action == "rollback" else set()
                withdrawn = tuple(sorted({*before.withdrawn} - {version} | left))
                after = after.model_copy(update={"withdrawn": withdrawn, "history": (*before.history, switch)})
            content = after.model_dump_json(indent=1) + "\n"
            self.root.put(f"{location}/current.json", content.encode())
            return after

    def _bundles(self, prefix: str) -> Iterator[tuple[str, str]]:
        for entry in self.root.list(prefix):
            parts = entry.name.split("/")
            if len(parts) == 4 and parts[3] == SUMS and _WORKLOAD.fullmatch(parts[1]) and _VERSION.fullmatch(parts[2]):
                yield parts[1], parts[2]


def _remove_abandoned(drafts: Path) -> None:
    """Remove what killed publishers left a day or more ago."""
    for folder in drafts.iterdir():
        with suppress(FileNotFoundError):  # its publisher has just made a bundle of it
            if folder.stat().st_mtime < time.time() - _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)


def _location(workload: str, version: str | None = None) -> str:
    for name, pattern in ((workload, _WORKLOAD), (version, _VERSION)):
        if name is not None and not pattern.fullmatch(name):
            raise ConfigurationError(f"{name!r} is not a valid name of a workload or version of a bundle.")
    return f"handoff/{workload}" if version is None else f"handoff/{workload}/{version}"

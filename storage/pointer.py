"""``current.json``: a workload's current bundle, the switches that led to this bundle, and a signature that expires.

Other users may write to the store, so a run with a key trusts only the newest pointer that its own key signed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from storage.digest import canonical_json
from storage.errors import BundleError, ConfigurationError, ConflictError, StoreError
from storage.local_root import LocalRoot
from storage.locks import file_lock
from storage.root import StoreRoot
from storage.seal import Signer, is_signed

Action = Literal["promote", "promote-by-hand", "rollback"]
WORKLOAD = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
VERSION = re.compile(r"\d{4}-\d{2}-\d{2}-[0-9a-f]{12}")
CURRENT = "current.json"
_LONGEST = 16 << 20  # maximum size in bytes; each switch adds about 300 bytes
_STRICT = ConfigDict(frozen=True, extra="forbid")
_SEEN = TypeAdapter(dict[str, int])
_Decided = TypeVar("_Decided", bound="Pointer | None")


def by_run(run_id: str) -> str:
    """Return the ``by`` value that identifies a run in a pointer's history."""
    return f"run {run_id}"


class Switch(BaseModel):
    """A change of the current bundle: the new version, and the change's time, author and reason."""

    model_config = _STRICT

    action: Action
    version: str
    sha256sums: str
    at: datetime
    by: str
    reason: str


class Pointer(BaseModel):
    """Content of ``current.json``: the deployed bundle, and every switch that led to this bundle, oldest first.

    ``sha256sums`` is the digest of the bundle's ``SHA256SUMS``. Users rolled back from the ``withdrawn`` versions, so
    runs never promote them. ``signature`` covers all other fields, and ``serial`` increases with every signature.
    """

    model_config = _STRICT

    format: Literal[1] = 1
    workload: str
    version: Annotated[str, Field(pattern=f"^{VERSION.pattern}$")]
    sha256sums: str
    withdrawn: tuple[str, ...] = ()
    history: tuple[Switch, ...]
    serial: int = 0
    expires_at: AwareDatetime | None = None
    signature: str | None = None

    def previous(self) -> str | None:
        """Return the most recent earlier version that is not withdrawn."""
        passed_over = {self.version, *self.withdrawn}
        return next((switch.version for switch in reversed(self.history) if switch.version not in passed_over), None)

    def text(self) -> str:
        """Return the content of ``current.json``."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"

    def switched(self, switch: Switch) -> Pointer:
        """Return the pointer after a switch, without a signature; a rollback withdraws the replaced version."""
        left = {self.version} if switch.action == "rollback" else set()
        withdrawn = tuple(sorted({*self.withdrawn} - {switch.version} | left))
        history = {"withdrawn": withdrawn, "history": (*self.history, switch), "expires_at": None, "signature": None}
        return self.model_copy(update=history | {"version": switch.version, "sha256sums": switch.sha256sums})

    def signed(self, signer: Signer) -> Pointer:
        """Return the pointer with a new signature, expiry time and serial number."""
        now = datetime.now(UTC).replace(microsecond=0)
        # Serial numbers are based on the current time, so that they increase even if the previous pointer was lost.
        serial = max(self.serial + 1, int(now.timestamp()))
        pointer = self.model_copy(update={"serial": serial, "expires_at": now + signer.valid})
        return pointer.model_copy(update={"signature": signer.sign(pointer.message())})

    def is_newest(self, state: Path) -> bool:
        """Record the serial number in a JSON file; return False if the file has a higher number for the workload."""
        with file_lock(state.with_name(f"{state.name}.lock")):
            seen = _seen_in(state)
            if self.serial < seen.get(self.workload, 0):
                return False
            content = json.dumps(seen | {self.workload: self.serial}, indent=1) + "\n"
            LocalRoot(state.absolute().parent).put(state.name, content.encode())
        return True

    def message(self) -> bytes:
        """Return the signed bytes, which are all fields except the signature."""
        return canonical_json(self.model_dump(mode="json", exclude={"signature"})).encode()


def check(pointer: Pointer | None, workload: str, key: EllipticCurvePublicKey, state: Path | None) -> None:
    """Raise `BundleError` unless a pointer is signed for `workload`, has not expired, and is the newest in `state`."""
    problem = ""
    if pointer is None or pointer.signature is None or pointer.expires_at is None:
        problem = "is not signed"
    elif not is_signed(pointer.message(), pointer.signature, key):
        problem = "was changed, or was signed with another key"
    elif pointer.workload != workload:
        problem = f"belongs to the workload {pointer.workload}"
    elif datetime.now(UTC) >= pointer.expires_at:
        problem = f"expired at {pointer.expires_at:%Y-%m-%d %H:%M} UTC"
    elif state is not None and not pointer.is_newest(state):
        problem = f"is an old copy, because {state} contains a serial number higher than {pointer.serial}"
    if problem:
        raise BundleError(
            f"The current.json of {workload} {problem}.",
            hint="Fetch current.json again. If this is the latest current.json, check the bundle and its history, "
            f"then run: nightquant handoff sign {workload}",
        )


class Pointers:
    """The ``current.json`` files of a store's workloads."""

    def __init__(self, root: StoreRoot, signer: Signer | None) -> None:
        self._root, self._signer = root, signer
        # This host's record of serial numbers. In a local store, the record is part of the store and of its backups.
        self._seen = root.lock_folder() / "signed.json"

    def read(self, workload: str) -> Pointer | None:
        """Read a workload's pointer; return None if the workload does not have a pointer."""
        name = f"{location_of(workload)}/{CURRENT}"
        try:
            return parse(self._root.uri(name), self._root.read(name))
        except FileNotFoundError:
            return None

    def change(self, workload: str, decide: Callable[[Pointer | None], _Decided]) -> _Decided:
        """Replace a pointer by compare-and-swap with the result of `decide`, which writes nothing if it returns None.

        The lock prevents other processes on this host from signing a newer pointer first.
        """
        name = f"{location_of(workload)}/{CURRENT}"
        with self._root.lock(f"handoff-{workload}"):
            stamped = self._root.stamped(name)
            current = parse(self._root.uri(name), stamped.content) if stamped else None
            after = decide(current)
            if after is None or after is current:
                return after
            if self._root.swap(name, after.text().encode(), stamped.etag if stamped else None) is None:
                raise ConflictError(
                    f"The file {self._root.uri(name)} changed while it was being replaced.",
                    hint="Check which bundle is current. If your change is still needed, run the command again.",
                )
            if self._signer is not None:
                after.is_newest(self._seen)
            return after

    def check(self, pointer: Pointer | None, workload: str, *, must_be_signed: bool = False) -> None:
        """Raise an error if a run must not continue from this pointer; accept a pointer that was never signed."""
        was_signed = self._signer is not None and workload in _seen_in(self._seen)
        if must_be_signed or was_signed or (pointer is not None and pointer.signature is not None):
            check(pointer, workload, self.require_signer().key.public_key(), self._seen)

    def require_signer(self) -> Signer:
        """Return the signer; raise `ConfigurationError` if no signing key is set."""
        if self._signer is None:
            raise ConfigurationError(
                "No signing key is set.", hint="Set NIGHTQUANT_SIGNING_KEY to the path of the key file."
            )
        return self._signer


def read_current(path: Path, workload: str, key: EllipticCurvePublicKey, state: Path | None = None) -> Pointer:
    """Read and check an untrusted copy of ``current.json`` (see `Pointer.check`)."""
    try:
        with path.open("rb") as stream:
            pointer = parse(path, stream.read(_LONGEST))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}.") from error
    check(pointer, workload, key, state)
    return pointer


def parse(place: object, content: bytes) -> Pointer:
    """Parse the ``current.json`` at `place`; raise `StoreError` if it is damaged."""
    try:
        return Pointer.model_validate_json(content)
    except ValidationError as error:
        raise StoreError(f"{place} is damaged.", hint="Restore the file from a backup, or remove it.") from error


def location_of(workload: str, version: str | None = None) -> str:
    """Return the folder of a workload's bundles, or of a bundle, relative to the store's root; refuse invalid names."""
    for name, pattern in ((workload, WORKLOAD), (version, VERSION)):
        if name is not None and not pattern.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is not a valid workload name or bundle version; valid examples are word-lm and "
                "2026-11-21-0123456789ab."
            )
    return f"handoff/{workload}" if version is None else f"handoff/{workload}/{version}"


def _seen_in(state: Path) -> dict[str, int]:
    """Return each workload's highest recorded serial number, or ``{}`` if the file does not exist yet."""
    try:
        return _SEEN.validate_json(state.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        raise ConfigurationError(f"{state} does not contain serial numbers. Restore it from a backup.") from error

"""Whether a signed statement of the current bundle is the newest: its workload, its time, its serial number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import TypeAdapter, ValidationError

from storage.errors import BundleError, ConfigurationError, StoreError
from storage.locks import file_lock
from storage.pointer import Statement, read_pointer, statement_of
from storage.root import LocalRoot

_SEEN = TypeAdapter(dict[str, tuple[int, str]])


def stated(
    path: Path,
    workload: str,
    keys: Sequence[Ed25519PublicKey],
    *,
    threshold: int = 1,
    min_version: str = "",
    max_age: timedelta | None = None,
    state: Path | None = None,
) -> Statement:
    """What a copy of ``current.json`` states about the workload, for those who deploy it and trust the keys alone.

    Parameters
    ----------
    keys, threshold
        So many of these public keys must have signed it.
    min_version, max_age
        See `check_statement`.
    state
        The file of `check_serial`.

    Raises
    ------
    BundleError
        It is not to be used.
    ConfigurationError
        The threshold is above the number of keys, or `state` is damaged.
    """
    if threshold > len({key.public_bytes_raw() for key in keys}):
        raise ConfigurationError(f"{threshold} signatures are asked for, and there are fewer public keys.")
    statement = statement_of(read_pointer(path), keys, threshold)
    check_statement(statement, workload, min_version=min_version, max_age=max_age)
    if state is not None:
        check_serial(state, statement)
    return statement


def check_statement(
    statement: Statement,
    workload: str,
    *,
    now: datetime | None = None,
    min_version: str = "",
    max_age: timedelta | None = None,
) -> None:
    """Refuse a statement of another workload, an expired one, one older than `max_age`, one of an earlier night.

    The night is that of `min_version`, of which only the date counts: versions of one night have no order.

    Raises
    ------
    BundleError
        It is such a one.
    """
    now = now or datetime.now(UTC)
    said = f"The signed current.json names {statement.version} of {statement.workload}"
    if statement.workload != workload:
        raise BundleError(f"{said}, not of {workload}.", hint="Do not use it: it is another workload's.")
    if now >= statement.expires_at:
        raise BundleError(
            f"{said} until {statement.expires_at:%Y-%m-%d %H:%M} UTC, which is over.",
            hint=f"Fetch it again; if it is the newest, run a night, or: nightquant handoff sign {workload}",
        )
    if max_age is not None and now - statement.signed_at > max_age:
        raise BundleError(
            f"{said} as of {statement.signed_at:%Y-%m-%d %H:%M} UTC, which is longer ago than allowed.",
            hint="Fetch it again.",
        )
    if statement.version[:10] < min_version[:10]:
        raise BundleError(f"{said}, which is of an earlier night than {min_version}.")


def check_serial(path: Path, statement: Statement, *, remember: bool = True) -> None:
    """Refuse a statement that is older than the newest one of its workload that was seen, and remember this one.

    `path` is a small JSON file, one for any number of workloads, which is made if it is missing.

    Raises
    ------
    BundleError
        A newer statement was seen, or another one with this serial.
    ConfigurationError
        The file is damaged.
    """
    digest = hashlib.sha256(statement.model_dump_json().encode()).hexdigest()
    with file_lock(path.with_name(f"{path.name}.lock")):
        seen = seen_in(path)
        serial, known = seen.get(statement.workload, (0, ""))
        if statement.serial < serial or (statement.serial == serial and digest != known):
            raise BundleError(
                f"The signed current.json of {statement.workload} has the serial {statement.serial}, and {serial} "
                "was seen before: it is an old copy.",
                hint=f"Do not use it, and fetch it again. What was seen is kept in {path}.",
            )
        if remember:
            seen[statement.workload] = (statement.serial, digest)
            LocalRoot(path.absolute().parent).put(path.name, (json.dumps(seen, indent=1) + "\n").encode())


def seen_in(path: Path) -> dict[str, tuple[int, str]]:
    """Serial and digest of the newest statement that was seen, by workload; {} if there is no such file yet."""
    try:
        return _SEEN.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise ConfigurationError(f"{path}: not a file of what was seen; restore it from a copy.") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error

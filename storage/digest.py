"""Write canonical JSON, compute digests of values and files, and read untrusted JSON files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.errors import InputError, first_line

JsonObject = dict[str, Any]
_LARGEST_JSON = 64 * 1024**2


def canonical_json(value: object) -> str:
    """Serialize a JSON value so that equal values yield equal text; raise `ValueError` for NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: Mapping[str, object]) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_json(path: Path) -> Any:  # any JSON value
    """Read an untrusted JSON file of at most 64 MiB."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise InputError(
                f"{path} is larger than {_LARGEST_JSON} bytes, the limit for JSON files. Use a smaller file."
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {first_line(error)}. Correct or replace the file.") from error

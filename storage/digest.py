"""JSON documents, and digests: one name for everything that decides an artifact's content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JsonObject = dict[str, Any]


def canonical_json(value: object) -> str:
    """Serialize a JSON value so that equal values have equal text; NaN and infinities are a `ValueError`."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: Mapping[str, object]) -> str:
    """SHA-256 (64 hexadecimal digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (64 hexadecimal digits) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

"""``manifest.json`` of a bundle, which is only used if it conforms to its JSON Schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import BundleError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

MANIFEST = "manifest.json"


def check_manifest(document: object) -> None:
    """Check a manifest against the schema.

    Raises
    ------
    BundleError
        It does not conform; the message names the first three places.
    """
    problems = sorted(_validator().iter_errors(document), key=lambda problem: problem.json_path)
    if problems:
        shown = "; ".join(f"{problem.json_path}: {problem.message[:200]}" for problem in problems[:3])
        raise BundleError(f"{MANIFEST} does not conform to its schema: {shown}.")


# Any: the schema, not a type, says what the document holds.
def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check a bundle's manifest, whose checksum must have been verified before.

    Raises
    ------
    BundleError
        It is not JSON or does not conform to the schema.
    """
    try:
        document: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise BundleError(f"{folder}: {MANIFEST} cannot be read: {error}.") from error
    check_manifest(document)
    return document


@cache
def _validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(Path(__file__).with_name("manifest.schema.json").read_text("utf-8")))

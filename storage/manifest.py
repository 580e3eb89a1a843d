"""``manifest.json`` of a bundle: its JSON Schema, and reading one only if it keeps to it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from storage.errors import BundleError

MANIFEST = "manifest.json"
SCHEMA_FILE = Path(__file__).with_name("manifest.schema.json")


@cache
def manifest_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every manifest keeps to."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return schema


def check_manifest(document: object) -> None:
    """Hold a manifest against the schema.

    Raises
    ------
    BundleError
        It does not keep to it; the message names the first three places.
    """
    from jsonschema import Draft202012Validator

    problems = sorted(
        Draft202012Validator(manifest_schema()).iter_errors(document), key=lambda problem: problem.json_path
    )
    if problems:
        shown = "; ".join(f"{problem.json_path}: {problem.message[:200]}" for problem in problems[:3])
        raise BundleError(f"{MANIFEST} does not keep to its schema: {shown}.")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check a bundle's manifest; its checksum must have been held before.

    Raises
    ------
    BundleError
        It is not JSON or does not keep to the schema.
    """
    try:
        document: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise BundleError(f"{folder}: {MANIFEST} cannot be read: {error}.") from error
    check_manifest(document)
    return document

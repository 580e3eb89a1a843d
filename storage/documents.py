"""What is read from JSON and TOML files: of many shapes, so that a schema checks it and no type follows it."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]

"""Registries of implementations by name that import one only when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def resolve(table: Mapping[str, str], key: str) -> Any:
    """Import and give what `table` names for `key` as ``"module:attribute"``.

    Raises
    ------
    KeyError
        The table has no such key: a defect, since the workload's schema allows only known ones.
    """
    module, _, attribute = table[key].partition(":")
    return getattr(import_module(module), attribute)

"""Find out that a store cannot be written before hours of work are spent on it."""

from __future__ import annotations

import uuid
from pathlib import Path

from storage.root import StoreRoot


def check_writable(place: StoreRoot | Path | str) -> None:
    """Write and remove a small file in the store.

    Raises
    ------
    StoreError
        The store cannot be written; the message says why and what to do.
    """
    root = StoreRoot.of(place)
    name = f".probe/{uuid.uuid4().hex}"
    root.put(name, b"nightquant\n")
    root.delete(name)

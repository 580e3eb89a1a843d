"""Registries of nightquant's extensions, whose classes are imported on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Generic, TypeVar

from storage.errors import did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Registry that maps names to subclasses of `T` (``"module:class"``); the first entry is the default."""

    kind: str
    entries: Mapping[str, str]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> type[T]:
        """Import a registered class; raise ValueError if the name is unknown."""
        found: type[T] = resolve_name(self.entries[self.known(name)])
        return found

    def known(self, name: str) -> str:
        """Return the name; raise ValueError if it is unknown."""
        if name not in self.entries:
            suggestion = did_you_mean(name, self.entries)
            raise ValueError(f'unknown {self.kind} "{name}"{suggestion}: expected one of {", ".join(self.entries)}')
        return name

    @property
    def default(self) -> str:
        """Name of the first entry, which is the default."""
        return next(iter(self.entries))

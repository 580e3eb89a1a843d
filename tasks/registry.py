"""Registries: implementations by name, imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Generic, TypeVar, cast

from storage.messages import did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """``"module:class"`` by name, the default first; ``kind`` is what messages call an entry, for instance "runtime".

    Classes are stateless and made without arguments.
    """

    kind: str
    entries: Mapping[str, str]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> T:
        """Import and make the implementation of that name.

        Raises
        ------
        ValueError
            There is none; the message lists the names there are.
        """
        if name not in self.entries:
            meant = did_you_mean(name, self.entries)
            raise ValueError(f'there is no {self.kind} "{name}"{meant}: expected one of {", ".join(self.entries)}')
        return cast(T, resolve_name(self.entries[name])())

    @property
    def default(self) -> str:
        """The first name."""
        return next(iter(self.entries))

"""Registries: implementations by name, imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import Generic, TypeVar, cast

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
            near = get_close_matches(name, self.entries, 1)
            meant = f' (did you mean "{near[0]}"?)' if near else ""
            raise ValueError(f'there is no {self.kind} "{name}"{meant}: expected one of {", ".join(self.entries)}')
        return cast(T, resolve_name(self.entries[name])())

    @property
    def default(self) -> str:
        """The first name."""
        return next(iter(self.entries))

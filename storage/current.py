"""``current.json``: which bundle of a workload is the one to deploy, and how it came to be."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict


class Switch(BaseModel):
    """One change of the current bundle: to what, when, by whom and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["promote", "rollback"]
    version: str
    sha256sums: str
    at: datetime
    by: str
    reason: str


class Current(BaseModel):
    """The current bundle with every switch that led to it, oldest first.

    ``sha256sums`` is the digest of the bundle's ``SHA256SUMS``: it names the content, so that a bundle swapped for
    another whole one is noticed. ``withdrawn`` lists versions that people rolled back from: the next night does not
    promote them again by itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    workload: str
    version: str
    sha256sums: str
    withdrawn: tuple[str, ...] = ()
    history: tuple[Switch, ...]

    @classmethod
    def first(cls, workload: str, switch: Switch) -> Self:
        """The state after a workload's first promotion."""
        return cls(workload=workload, version=switch.version, sha256sums=switch.sha256sums, history=(switch,))

    def after(self, switch: Switch) -> Self:
        """The state after one more switch; rolling back withdraws what was current, and restores what it goes to."""
        withdrawn = set(self.withdrawn) - {switch.version}
        if switch.action == "rollback":
            withdrawn.add(self.version)
        return type(self)(
            workload=self.workload,
            version=switch.version,
            sha256sums=switch.sha256sums,
            withdrawn=tuple(sorted(withdrawn)),
            history=(*self.history, switch),
        )

    def previous(self) -> Switch | None:
        """The newest switch to a version that is neither current nor withdrawn."""
        for switch in reversed(self.history):
            if switch.version != self.version and switch.version not in self.withdrawn:
                return switch
        return None

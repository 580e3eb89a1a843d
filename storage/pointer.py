"""``current.json``: which bundle of a workload is deployed, and how it came to be."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

Action = Literal["promote", "rollback"]


class Switch(BaseModel):
    """One change of the current bundle: to what, when, by whom and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Action
    version: str
    sha256sums: str
    at: datetime
    by: str
    reason: str


class Pointer(BaseModel):
    """The current bundle with every switch that led to it, oldest first.

    ``sha256sums`` is the digest of the bundle's ``SHA256SUMS``: it names the content, so that a bundle swapped for
    another complete one is noticed. ``withdrawn`` lists versions that people rolled back from, which the next night
    does not promote again by itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    workload: str
    version: str
    sha256sums: str
    withdrawn: tuple[str, ...] = ()
    history: tuple[Switch, ...]

    def after(self, switch: Switch) -> Pointer:
        """Switch to another bundle; rolling back withdraws the current one, and restores the one it goes to."""
        withdrawn = set(self.withdrawn) - {switch.version}
        if switch.action == "rollback":
            withdrawn.add(self.version)
        return Pointer(
            workload=self.workload,
            version=switch.version,
            sha256sums=switch.sha256sums,
            withdrawn=tuple(sorted(withdrawn)),
            history=(*self.history, switch),
        )

    def previous(self) -> Switch | None:
        """The newest switch to a version that is neither current nor withdrawn."""
        passed_over = {self.version, *self.withdrawn}
        return next((switch for switch in reversed(self.history) if switch.version not in passed_over), None)

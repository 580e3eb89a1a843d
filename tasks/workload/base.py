"""What every part of a workload file has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints


class Section(BaseModel):
    """A frozen part of a workload file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Kind(Section):
    """A section that comes in several kinds; ``kind`` tells them apart."""

    kind: str


Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

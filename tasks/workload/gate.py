"""``[gate]``: the rules that a candidate must pass to be promoted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from tasks.workload.base import Section


class Gate(Section):
    """Rules; one that is left out does not apply.

    ``max_quality_drop`` is in the metric's own unit (``quality_drop = "absolute"``) or a share of the baseline's
    quality (``"relative"``); a drop is a change for the worse in the metric's stated direction. ``min_speedup`` is held
    against the lower end of the interval.
    """

    objective: Literal["fastest", "smallest"] = "fastest"
    quality_drop: Literal["absolute", "relative"] = "absolute"
    max_quality_drop: float | None = Field(default=None, ge=0)
    min_size_ratio: PositiveFloat | None = None
    min_speedup: PositiveFloat | None = None
    max_peak_rss_bytes: PositiveInt | None = None
    min_coverage: float | None = Field(default=None, ge=0, le=1)
    allowed_verdicts: tuple[Literal["valid", "inconclusive"], ...] = ("valid",)

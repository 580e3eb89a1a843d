"""A colour and a mark for each candidate of a workload: the same in its table and on each of its plots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Okabe and Ito's colours, which colour-blind people can tell apart, without the yellow that is too pale on white; with
# a marker each, so that colour is never the only sign.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
# matplotlib's markers, and each one's outline in a square from 0 to 16.
_MARKERS = {
    "o": "M8 2a6 6 0 1 0 .01 0z",
    "s": "M3 3h10v10H3z",
    "^": "M8 2l6.5 12h-13z",
    "D": "M8 1l7 7-7 7-7-7z",
    "v": "M8 14l6.5-12h-13z",
    "P": "M6 2h4v4h4v4h-4v4H6v-4H2V6h4z",
    "X": "M2 5l3-3 3 3 3-3 3 3-3 3 3 3-3 3-3-3-3 3-3-3 3-3z",
}


@dataclass(frozen=True)
class Mark:
    """A colour, as CSS has it, and one of matplotlib's markers."""

    colour: str
    marker: str

    @property
    def svg(self) -> str:
        """The mark for a line of text; its name stands beside it, so that screen readers pass it over."""
        outline = _MARKERS[self.marker]
        return (
            f'<svg class="mark" viewBox="0 0 16 16" aria-hidden="true"><path fill="{self.colour}" d="{outline}"/></svg>'
        )


def marks_of(candidates: Iterable[str]) -> dict[str, Mark]:
    """A mark per candidate, by its name; 49 different ones."""
    markers, count = list(_MARKERS), len(_COLOURS)
    return {
        name: Mark(_COLOURS[index % count], markers[(index + index // count) % count])
        for index, name in enumerate(sorted(set(candidates)))
    }

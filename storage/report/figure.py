"""A figure of matplotlib's as inline SVG: small, with a title and a description for those who cannot see it."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from storage.digest import digest_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE = Path(__file__).with_name("plots.mplstyle")
# In inches: as wide as a phone, so that its text has the page's size there.
_SIZE = (4.6, 3.5)
_TAG, _DIGITS = re.compile(r"<[^>]*>"), re.compile(r"(\d\.\d\d)\d+")
_ROOT = re.compile(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>')
# Comments that repeat the text, ids that nothing refers to and that every figure has, and what says nothing.
_IDLE = re.compile(r'<!--.*?-->|<metadata>.*?</metadata>|(?<=<g) id="[^"]*"| ?stroke-linejoin: [a-z]+;?|\n', re.DOTALL)


@dataclass
class Drawing:
    """A figure with its one set of axes; ``svg`` is empty until the figure is whole."""

    figure: Figure
    axes: Axes
    svg: str = ""


def can_draw() -> bool:
    """Whether matplotlib, which draws, is installed."""
    return find_spec("matplotlib") is not None


@contextmanager
def drawing(title: str, description: str) -> Iterator[Drawing]:
    """Yield axes to draw on; what was drawn is the drawing's ``svg`` afterwards."""
    import matplotlib
    from matplotlib.figure import Figure

    # SVG ids are random by default; with a salt per title the same night yields the same file.
    with matplotlib.rc_context({"svg.hashsalt": title}, fname=_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        drawn = Drawing(figure, figure.subplots())
        yield drawn
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    drawn.svg = _accessible(buffer.getvalue(), title, description)


def _accessible(text: str, title: str, description: str) -> str:
    name = f"plot-{digest_of({'title': title})[:8]}"
    text = _IDLE.sub("", text[text.index("<svg") :]).replace("xlink:href", "href")
    text = _TAG.sub(lambda tag: _DIGITS.sub(r"\1", tag[0]), text)  # coordinates, not the axes' numbers
    # A width in points would not shrink on a phone.
    root = (
        f'<svg \\1 role="img" aria-labelledby="{name}-title" aria-describedby="{name}-text">'
        f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-text">{html.escape(description)}</desc>'
    )
    return _ROOT.sub(root, text, count=1)

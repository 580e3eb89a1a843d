"""What an accessibility checker (axe, WCAG 2.2 AA) asks of a page like the report, over what `facts.js` measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from typing import Any

Facts = dict[str, Any]
_LEAST_TEXT = 9.0  # CSS pixels, in plots too
_SLACK = 1.5  # CSS pixels that a glyph's box may stand out


def violations(facts: Facts) -> list[str]:
    """Everything that is wrong with a page, as ``check: what``."""
    return [f"{check.__name__}: {what}" for check in CHECKS for what in check(facts)]


def document(facts: Facts) -> Iterator[str]:
    """Say the language and a title, have one main part, and let people zoom."""
    if not facts["lang"]:
        yield "no language"
    if not facts["title"]:
        yield "no title"
    if facts["mains"] != 1:
        yield f"{facts['mains']} main parts"
    if "width=device-width" not in facts["viewport"] or re.search("user-scalable|maximum", facts["viewport"]):
        yield f"viewport {facts['viewport']!r}"


def headings(facts: Facts) -> Iterator[str]:
    """Begin with the only h1 and leave no level out on the way down."""
    levels = [level for level, _ in facts["headings"]]
    if levels.count(1) != 1 or levels[0] != 1:
        yield f"levels {levels}"
    yield from (f"h{after} follows h{before}" for before, after in pairwise(levels) if after > before + 1)
    yield from (f"an empty h{level}" for level, text in facts["headings"] if not text)


def images(facts: Facts) -> Iterator[str]:
    """Have a role, a name and a description, or be hidden from screen readers."""
    for image in facts["images"]:
        if not image["hidden"] and not (image["role"] == "img" and image["name"] and image["description"]):
            yield f"image without role, name or description: {image}"


def tables(facts: Facts) -> Iterator[str]:
    """Head every column and every row, with a scope, and fill every cell."""
    for table in facts["tables"]:
        if not table["columns"]:
            yield f"no column headers: {table['name']}"
        wrong = [text for text, scope in table["headers"] if scope not in ("col", "row") or not text]
        yield from (f"header without text or scope: {text!r}" for text in wrong)
        for cells, heads in table["rows"]:
            if cells != table["columns"] or heads != 1:
                yield f"a row of {cells} cells and {heads} headers: {table['name']}"


def names(facts: Facts) -> Iterator[str]:
    """Name regions and links, each region in its own way; link to what is there, with ids that are there once."""
    found = [name for _, name in facts["regions"]]
    yield from (f"{tag} without a name" for tag, name in facts["regions"] if not name)
    yield from (f"two regions {name!r}" for name in set(found) if name and found.count(name) > 1)
    yield from (f"link {text!r} to {target}" for text, target, exists in facts["links"] if not text or not exists)
    yield from (f"id {each} twice" for each in set(facts["ids"]) if facts["ids"].count(each) > 1)


def lists(facts: Facts) -> Iterator[str]:
    """Hold items only, and some."""
    yield from (f"list of {items}" for items in facts["lists"] if set(items) != {"LI"})


def contrast(facts: Facts) -> Iterator[str]:
    """Text stands out from its background by 4.5:1; large text by 3:1."""
    for text in facts["texts"]:
        is_large = text["size"] >= 24 or (text["size"] >= 18.66 and text["weight"] >= 700)
        if (found := ratio_of(text["colour"], text["background"])) < (3 if is_large else 4.5):
            yield f"{found:.2f}:1 in {text['text']!r}"


def overflow(facts: Facts) -> Iterator[str]:
    """Nothing is wider than the page."""
    if facts["scrollWidth"] > facts["width"]:
        yield f"{facts['scrollWidth']} px on {facts['width']}"
    for text in facts["texts"]:
        left, _, right, _ = text["box"]
        if left < -_SLACK or right > facts["width"] + _SLACK:
            yield f"from {left:.0f} to {right:.0f} px on {facts['width']}: {text['text']!r}"


def plots(facts: Facts) -> Iterator[str]:
    """Text in pictures is large enough, not cut by the picture's edge, and not written over other text."""
    texts = [text for text in facts["texts"] if text["edge"]]
    for text in texts:
        edge = text["edge"]
        if any(text["box"][i] < edge[i] - _SLACK or text["box"][i + 2] > edge[i + 2] + _SLACK for i in (0, 1)):
            yield f"cut in {text['plot']}: {text['text']!r}"
    for one, other in combinations(texts, 2):
        if one["edge"] == other["edge"] and all(_shared(one["box"], other["box"], axis) > _SLACK for axis in (0, 1)):
            yield f"on each other in {one['plot']}: {one['text']!r} and {other['text']!r}"
    small = (text for text in facts["texts"] if text["size"] < _LEAST_TEXT)
    yield from (f"{text['size']:.1f} px: {text['text']!r}" for text in small)


CHECKS: tuple[Callable[[Facts], Iterator[str]], ...] = (
    document, headings, images, tables, names, lists, contrast, overflow, plots,
)  # fmt: skip


def ratio_of(one: str, other: str) -> float:
    """Contrast of two opaque colours, as ``rgb(r, g, b)`` (WCAG 2.2, "contrast ratio")."""
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)]
    assert len(channels) == 3, f"{colour} is not opaque"
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _shared(one: list[float], other: list[float], axis: int) -> float:
    return min(one[axis + 2], other[axis + 2]) - max(one[axis], other[axis])

"""Text from outside as people may see it: no credentials, nothing that a terminal obeys, no endless lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST_LINE, _LONGEST = 2000, 20_000
_SCHEME = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)"
# Up to the last @ of the authority, however the password is written.
_CREDENTIALS = re.compile(_SCHEME + r"[^\s/?#]*@")
_QUERY = re.compile(_SCHEME + r"(?P<rest>[^\s?#'\"<>]*)[?#][^\s'\"<>]*")


def shown(uri: str) -> str:
    """A URI (or a chain of them) without user, password and query, which may hold a signature; a path as it is."""
    without = _CREDENTIALS.sub(r"\g<scheme>", uri)
    return "::".join(_QUERY.sub(r"\g<scheme>\g<rest>", part) for part in without.split("::"))


def printable(text: str) -> str:
    """A message's text with URIs as `shown`, control and direction characters escaped, and long lines cut."""
    text = _QUERY.sub(r"\g<scheme>\g<rest>", _CREDENTIALS.sub(r"\g<scheme>", text))
    escaped = "".join(
        character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1] for character in text
    )
    lines = [_cut(line, _LONGEST_LINE) for line in escaped.split("\n")]
    return _cut("\n".join(lines), _LONGEST)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A proposal to follow a message about a name that there is not; "" where no known one is like it."""
    near = get_close_matches(name, dict.fromkeys(known), 1)
    return f' (did you mean "{near[0]}"?)' if near else ""


def _cut(text: str, longest: int) -> str:
    # A little more than `longest` is left alone, so that what was cut once is not cut again.
    return text if len(text) <= longest + 50 else f"{text[:longest]}… ({len(text):,} characters)"

"""A results file's own SHA-256, in its footer: whatever bit of the file changes, it no longer fits.

Parquet has checksums of pages, which readers verify on demand, but none of headers and footers, where a flipped bit
changes values too. The digest is that of the file with zeros in the digest's place, so that one atomic write publishes
both.
"""

from __future__ import annotations

import hashlib
import re

_DIGEST = "nightquant.file-sha256"
_BLANK = "0" * 64
# Key and value of the footer's metadata as Thrift's compact protocol writes them: 0x18 begins the value, 0x40 is 64.
_WRITTEN = re.compile(re.escape(_DIGEST.encode()) + rb"\x18\x40([0-9a-f]{64})")

# To be added to the footer before `sealed`.
PLACEHOLDER = {_DIGEST: _BLANK}


def sealed(content: bytes) -> bytes:
    """Put the digest into a file that was written with `PLACEHOLDER` in its footer."""
    (place,) = _WRITTEN.finditer(content)
    return content[: place.start(1)] + hashlib.sha256(content).hexdigest().encode() + content[place.end(1) :]


def problem_of(content: bytes) -> str:
    """Say what is wrong with a file by its own digest; "" if it fits."""
    is_there = False
    for place in _WRITTEN.finditer(content):
        is_there = True
        blank = content[: place.start(1)] + _BLANK.encode() + content[place.end(1) :]
        if hashlib.sha256(blank).hexdigest().encode() == place[1]:
            return ""
    return "its SHA-256 is not the one that was written with it" if is_there else "it has no SHA-256 of its own"

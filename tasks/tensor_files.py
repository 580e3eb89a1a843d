"""Writing safetensors files."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

# safetensors gives the system's error as text alone: "I/O error: No space left on device (os error 28)".
_NUMBER = re.compile(r"(?P<reason>[^:]*) \(os error (?P<number>\d+)\)")


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file.

    Raises
    ------
    OSError
        It cannot be written; safetensors' own error would pass everyone who waits for this one, as the store does.
    """
    try:
        save_file(dict(tensors), path, metadata=dict(metadata) if metadata is not None else None)
    except SafetensorError as error:
        found = _NUMBER.search(str(error))
        number = int(found["number"]) if found else errno.EIO
        raise OSError(number, found["reason"].strip() if found else str(error), str(path)) from error

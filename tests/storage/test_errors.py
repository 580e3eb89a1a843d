from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage.errors import StoreError, writing

FOLDER = Path("/srv/store/handoff")


@pytest.mark.parametrize("name", [None, "/srv/store/handoff", "/srv/store/handoff/x", "/srv/store", "/srv"])
@pytest.mark.slow
def test_an_error_at_the_folder_in_it_or_above_it_is_the_stores(name: str | None) -> None:
    with pytest.raises(StoreError, match="cannot be written: No space left"), writing("the store", FOLDER):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


@pytest.mark.parametrize("name", ["/srv/store/handoff2", "/srv/st", "/home/model.pth", "model.pth"])
@pytest.mark.slow
def test_an_error_elsewhere_stays_what_it_is(name: str) -> None:
    with pytest.raises(FileNotFoundError), writing("the store", FOLDER):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

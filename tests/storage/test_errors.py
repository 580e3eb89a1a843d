from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InputError, StoreError, printable, shown, writing

FOLDER = Path("/srv/store/handoff")


@pytest.mark.parametrize("name", [None, "/srv/store/handoff", "/srv/store/handoff/x", "/srv/store", "/srv"])
@pytest.mark.slow
def test_an_error_at_the_folder_in_it_or_above_it_is_the_stores(name: str | None) -> None:
    with (
        pytest.raises(StoreError, match="Cannot write to the store the store: No space left"),
        writing("the store", FOLDER),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


@pytest.mark.parametrize("name", ["/srv/store/handoff2", "/srv/st", "/home/model.pth", "model.pth"])
@pytest.mark.slow
def test_an_error_elsewhere_stays_what_it_is(name: str) -> None:
    with pytest.raises(FileNotFoundError), writing("the store", FOLDER):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://user:secret@host:1/w?token=x#part", "https://host:1/w"),
        ("https://host/w", "https://host/w"),
        ("s3://key:secret@bucket/a@b", "s3://bucket/a@b"),
        ("zip://inner.pth::https://u:secret@host/o.zip?X-Amz-Signature=secret", "zip://inner.pth::https://host/o.zip"),
        ("http://[bad?secret", "http://[bad"),
        ("/data/what?.bin", "/data/what?.bin"),
        ("data/a@b", "data/a@b"),
    ],
)
@pytest.mark.slow
def test_a_uri_is_shown_without_credentials_and_queries(uri: str, expected: str) -> None:
    assert shown(uri) == expected


def test_no_message_shows_credentials_wherever_the_text_comes_from() -> None:
    error = InputError(
        "Get 'https://u:secret@host/a?sig=secret' failed.", hint="See s3://k:secret@bucket?sig=secret ok."
    )
    assert str(error) == "Get 'https://host/a' failed. See s3://bucket ok."


@given(st.text())
def test_a_message_is_always_printable_and_cleaning_it_again_changes_nothing(text: str) -> None:
    cleaned = printable(text)
    assert all(character.isprintable() or character in "\n\t" for character in cleaned)
    assert printable(cleaned) == cleaned
    cleaned.encode()

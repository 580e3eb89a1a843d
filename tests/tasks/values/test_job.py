from __future__ import annotations

import threading
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import InputError, NightquantError, QuantizationError, StoreError
from tasks.values.job import Workspace


@pytest.mark.slow
def test_equal_work_takes_turns(tmp_path: Path) -> None:
    workspace, order = Workspace(ArtifactStore(tmp_path)), []
    inside = threading.Event()

    def second() -> None:
        inside.wait()
        with workspace.alone("a" * 64) as work:
            order.append("second begins")
            assert not list(work.iterdir())

    other = threading.Thread(target=second)
    other.start()
    with workspace.alone("a" * 64) as work:
        (work / "epoch").write_text("1")
        inside.set()
        other.join(timeout=0.2)
        assert order == []
    other.join()
    assert order == ["second begins"]
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (QuantizationError("diverged"), False),
        (InputError("the server is away", transient=True), True),
        (StoreError("disk full"), True),
        (KeyboardInterrupt(), True),
    ],
)
@pytest.mark.slow
def test_work_stays_where_it_can_go_on(error: NightquantError | KeyboardInterrupt, kept: bool, tmp_path: Path) -> None:
    def fail() -> None:
        with Workspace(ArtifactStore(tmp_path)).alone("a" * 64) as work:
            (work / "epoch").write_text("1")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert (tmp_path / "work" / ("a" * 64) / "epoch").exists() is kept


def test_an_artifact_is_made_once_and_not_at_all_if_that_fails(tmp_path: Path) -> None:
    workspace, made = Workspace(ArtifactStore(tmp_path)), []

    def make(folder: Path) -> None:
        made.append(1)
        (folder / "file").write_text("content")

    def fail(folder: Path) -> None:
        (folder / "file").write_text("half")
        raise QuantizationError("No.")

    with pytest.raises(QuantizationError, match="No"):
        workspace.find_or_make("kind", {"of": "this"}, fail)
    folders = [workspace.find_or_make("kind", {"of": "this"}, make) for _ in range(2)]
    assert (folders[0], len(made)) == (folders[1], 1)
    assert (folders[0] / "file").read_text() == "content"
    assert workspace.find_or_make("kind", {"of": "that"}, make) != folders[0]

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from storage.artifacts import ArtifactStore
from tasks.quantize.training_state import alone


def test_equal_trainings_take_turns(tmp_path: Path) -> None:
    store, order = ArtifactStore(tmp_path), []
    inside = threading.Event()

    def second() -> None:
        inside.wait()
        with alone(store, "a" * 64) as work:
            order.append("second begins")
            assert not list(work.iterdir())
            shutil.rmtree(work)

    other = threading.Thread(target=second)
    other.start()
    with alone(store, "a" * 64) as work:
        (work / "epoch").write_text("1")
        inside.set()
        other.join(timeout=0.2)
        assert order == []
        shutil.rmtree(work)
    other.join()
    assert order == ["second begins"]
    assert not list((tmp_path / "work").iterdir())


def test_other_trainings_do_not_wait(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    with alone(store, "a" * 64) as one, alone(store, "b" * 64) as two:
        assert one != two

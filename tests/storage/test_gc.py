from __future__ import annotations

import datetime as dt
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactStore, artifact_digest
from storage.check import check
from storage.gc import YOUNG_S, collect
from storage.results.catalog import refresh
from storage.root import StoreRoot
from tests.storage.results.rows import measurement, write_night

NIGHTS = [dt.date(2026, 3, day) for day in range(1, 5)]


def make(store: Path | str, kind: str, **made_from: Any) -> str:
    digest = artifact_digest(kind, made_from)
    with ArtifactStore(store).create(kind, digest, made_from) as folder:
        (folder / "content").write_bytes(b"x" * 100)
    return digest


def fill(store: Path | str) -> dict[str, str]:
    """Per night a data set, a checkpoint of it, a model of that, and its outputs."""
    digests = {}
    for index, night in enumerate(NIGHTS):
        data = make(store, "corpus", seed=index)
        checkpoint = make(store, "checkpoint", data=data)
        model = make(store, "quantized", checkpoint=checkpoint)
        outputs = make(store, "outputs", model=model)
        digests |= {f"data{index}": data, f"model{index}": model, f"outputs{index}": outputs}
        digests[f"checkpoint{index}"] = checkpoint
        run = f"run-{index}"
        write_night(store, night, [measurement(run, night, artifact_digest=model)], run)
    digests["loose"] = make(store, "quantized", seed="nobody's")
    refresh(store)
    return digests


def left(store: Path | str) -> set[str]:
    return {entry.name.split("/")[3] for entry in StoreRoot.of(store).list("artifacts")}


TOMORROW = time.time() + 2 * YOUNG_S


def test_what_kept_rows_refer_to_stays_with_all_it_was_made_from(tmp_path: Path) -> None:
    digests = fill(tmp_path)
    done = collect(tmp_path, 2, now=TOMORROW)
    kept = {digest for name, digest in digests.items() if name[-1] in "23"}
    assert left(tmp_path) == kept
    assert done.kept == 8
    assert {item.digest for item in done.removed} == set(digests.values()) - kept
    assert check(tmp_path).problems == ()


def test_what_a_bundle_mentions_stays(tmp_path: Path) -> None:
    digests = fill(tmp_path)
    manifest = tmp_path / "handoff/word-lm/1/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"provenance": {"artifact": digests["model0"]}}))
    collect(tmp_path, 1, now=TOMORROW)
    assert {digests["model0"], digests["checkpoint0"], digests["data0"], digests["outputs0"]} <= left(tmp_path)
    assert digests["model1"] not in left(tmp_path)


def test_a_dry_run_says_the_same_and_removes_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    before = left(tmp_path)
    dry = collect(tmp_path, 1, dry_run=True, now=TOMORROW)
    assert left(tmp_path) == before
    wet = collect(tmp_path, 1, now=TOMORROW)
    assert [item.digest for item in dry.removed] == [item.digest for item in wet.removed]
    assert dry.bytes_freed == wet.bytes_freed > 0


def test_what_is_younger_than_a_day_stays(tmp_path: Path) -> None:
    fill(tmp_path)
    assert collect(tmp_path, 1).removed == ()


def test_nothing_to_keep_and_nothing_there_are_good(tmp_path: Path) -> None:
    assert collect(tmp_path, 1).kept == 0


def test_what_killed_writers_left_goes(tmp_path: Path) -> None:
    fill(tmp_path)
    temporary = tmp_path / "artifacts/.tmp/abc/half"
    temporary.parent.mkdir(parents=True)
    temporary.touch()
    os.utime(temporary, (0, 0))
    assert len(collect(tmp_path, 9).leftovers) == 1
    assert not temporary.exists()


@pytest.mark.parametrize("name", ["work/abc/state.pt", "downloads/abc.part"])
def test_what_a_later_night_could_go_on_from_stays_for_a_month(name: str, tmp_path: Path) -> None:
    fill(tmp_path)
    unfinished = tmp_path / name
    unfinished.parent.mkdir(parents=True)
    unfinished.touch()
    written = unfinished.stat().st_mtime
    assert collect(tmp_path, 9, now=written + 30 * 24 * 3600).leftovers == ()
    assert len(collect(tmp_path, 9, now=written + 32 * 24 * 3600).leftovers) == 1
    assert not unfinished.exists()
    assert not (tmp_path / "work/abc").exists()


@pytest.mark.server
def test_the_same_on_an_object_store(s3_store: str) -> None:
    digests = fill(s3_store)
    assert check(s3_store).problems == ()
    collect(s3_store, 1, now=TOMORROW)
    assert left(s3_store) == {digest for name, digest in digests.items() if name[-1] == "3"}
    assert check(s3_store).problems == ()

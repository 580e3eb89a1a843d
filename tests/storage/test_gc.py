from __future__ import annotations

import datetime as dt
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactStore, artifact_digest
from storage.bundles import BundleStore
from storage.check import check
from storage.errors import NightRunningError, StoreError
from storage.gc import YOUNG_S, collect
from storage.holder import Holder, hold
from storage.journal import Answer, Journal
from storage.results.catalog import refresh
from storage.root import StoreRoot
from tests.storage.bundle_files import publish, version
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


@pytest.mark.slow
def test_artifacts_of_kept_rows_stay_with_their_inputs(tmp_path: Path) -> None:
    digests = fill(tmp_path)
    done = collect(tmp_path, 2, now=TOMORROW)
    kept = {digest for name, digest in digests.items() if name[-1] in "23"}
    assert left(tmp_path) == kept
    assert done.kept == 8
    assert {item.digest for item in done.removed} == set(digests.values()) - kept
    assert check(tmp_path).problems == ()


def test_artifacts_that_a_bundle_mentions_stay(tmp_path: Path) -> None:
    digests = fill(tmp_path)
    manifest = tmp_path / "handoff/word-lm/1/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"provenance": {"artifact": digests["model0"]}}))
    collect(tmp_path, 1, now=TOMORROW)
    assert {digests["model0"], digests["checkpoint0"], digests["data0"], digests["outputs0"]} <= left(tmp_path)
    assert digests["model1"] not in left(tmp_path)


def test_candidates_keep_their_inputs_outputs_and_facts(tmp_path: Path) -> None:
    made = {"checkpoint": make(tmp_path, "checkpoint", seed=1)}
    made["fine-tuned"] = make(tmp_path, "fine-tuned", checkpoint=made["checkpoint"])
    made["converted"] = make(tmp_path, "converted", fine_tuned=made["fine-tuned"])
    made["candidate"] = make(tmp_path, "candidate", converted=made["converted"])
    made |= {
        kind: make(tmp_path, kind, candidate=made["candidate"]) for kind in ("outputs", "evaluation", "proof", "memory")
    }
    other = make(tmp_path, "candidate", converted=made["converted"], runtime="other")
    about_other = {make(tmp_path, kind, candidate=other) for kind in ("outputs", "evaluation", "proof", "memory")}
    write_night(tmp_path, NIGHTS[0], [measurement("run", NIGHTS[0], artifact_digest=made["candidate"])], "run")
    done = collect(tmp_path, 1, now=TOMORROW)
    assert left(tmp_path) == set(made.values())
    assert {item.digest for item in done.removed} == {other, *about_other}


def test_a_folder_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    own = old_file(tmp_path / "work/thesis.txt")
    with pytest.raises(StoreError, match="There is no store at"):
        collect(tmp_path, 1)
    assert own.exists()


@pytest.mark.parametrize(
    "name",
    [
        "work/abc/chapter.txt",
        "downloads/film.part",
        "artifacts/model/1/best/weights.bin",
        "artifacts/.tmp/mine/notes",
        "results/plots/figure.tmp",
    ],
)
@pytest.mark.slow
def test_names_that_nightquant_never_uses_are_left_alone(name: str, tmp_path: Path) -> None:
    fill(tmp_path)
    own = old_file(tmp_path / name)
    assert collect(tmp_path, 9).leftovers == ()
    assert own.exists()


def old_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"mine")
    os.utime(path, (0, 0))
    return path


@pytest.mark.parametrize(
    "name",
    [
        f"handoff/word-lm/.current-{'b' * 32}.tmp",
        f".results-{'b' * 32}.tmp",
        f".locks/.night-{'b' * 32}.tmp",
        f"handoff/.tmp/{'b' * 32}/model.ts",
    ],
)
@pytest.mark.slow
def test_files_of_a_writer_killed_between_writing_and_renaming_are_removed(name: str, tmp_path: Path) -> None:
    fill(tmp_path)
    temporary = old_file(tmp_path / name)
    assert [problem.where for problem in check(tmp_path).problems] == [str(temporary.relative_to(tmp_path))]
    assert len(collect(tmp_path, 9).leftovers) == 1
    assert not temporary.exists()
    assert temporary.parent.exists()


@pytest.mark.parametrize(
    "name",
    [
        f"work/{'a' * 64}/state.pt",
        f"work/{'a' * 64}.lock",
        f"downloads/{'b' * 64}.part",
        "downloads/extracted-a1_b2c3d/x/y",
    ],
)
@pytest.mark.slow
def test_resumable_work_stays_for_a_month(name: str, tmp_path: Path) -> None:
    fill(tmp_path)
    unfinished = tmp_path / name
    unfinished.parent.mkdir(parents=True)
    unfinished.touch()
    written = unfinished.stat().st_mtime
    assert collect(tmp_path, 9, now=written + 30 * 24 * 3600).leftovers == ()
    assert len(collect(tmp_path, 9, now=written + 32 * 24 * 3600).leftovers) == 1
    assert not unfinished.exists()


@pytest.mark.slow
@pytest.mark.server
def test_this_hosts_cache_of_an_object_store_is_cleaned_with_the_store(s3_store: str) -> None:
    kept, dropped, of_another_host = (make(s3_store, "quantized", seed=seed) for seed in range(3))
    write_night(s3_store, NIGHTS[0], [measurement("run", NIGHTS[0], artifact_digest=kept)], "run")
    store, cache = StoreRoot.of(s3_store), ArtifactStore(s3_store).root
    for entry in store.list(f"artifacts/quantized/{of_another_host[:2]}"):
        store.delete(entry.name)  # a collection on another host, which has a cache of its own
    publish(BundleStore(store), 1)
    bundle = BundleStore(store).local_folder("word-lm", version(1))
    temporary = cache / "artifacts/.tmp" / f"{'a' * 12}-{'b' * 32}" / "half"
    month_old = [cache / f"downloads/{'b' * 64}", cache / f"work/{'a' * 64}/state.pt", bundle / "model.ts"]
    for path in (temporary, *month_old, cache / "locks/signed.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    copies = {"kept": kept, "dropped": dropped, "of another host": of_another_host}

    def present() -> set[str]:
        found = {path.parent.name for path in cache.glob("artifacts/quantized/*/*/artifact.json")}
        return {name for name, digest in copies.items() if digest in found}

    assert collect(s3_store, 1, dry_run=True).cached == ()
    dry = collect(s3_store, 1, dry_run=True, now=TOMORROW)
    assert present() == copies.keys()
    wet = collect(s3_store, 1, now=TOMORROW)
    assert wet.cached == dry.cached
    assert present() == {"kept"}
    assert left(s3_store) == {kept}
    assert not temporary.exists()
    assert all(path.exists() for path in month_old)
    collect(s3_store, 1, now=TOMORROW + 30 * YOUNG_S)
    assert [path for path in month_old if path.exists()] == []
    assert (cache / "locks/signed.json").exists()
    # Whatever is still in use is fetched again.
    assert ArtifactStore(s3_store).find("quantized", kept)
    assert BundleStore(store).local_folder("word-lm", version(1)) == bundle
    assert check(s3_store).problems == ()


@pytest.mark.slow
def test_nothing_is_removed_while_a_night_may_use_it_again(tmp_path: Path) -> None:
    digests = fill(tmp_path)
    with hold(tmp_path, Holder("tonight", "")):
        assert collect(tmp_path, 2, dry_run=True, now=TOMORROW).removed
        with pytest.raises(NightRunningError, match="run tonight"):
            collect(tmp_path, 2, now=TOMORROW)
        assert left(tmp_path) == set(digests.values())
    assert collect(tmp_path, 2, now=TOMORROW).removed
    with hold(tmp_path, Holder("the next", "")) as held:
        assert held.dead == ()


def test_month_old_journals_are_removed(tmp_path: Path) -> None:
    fill(tmp_path)
    for age in (20, 40):
        journal = Journal.read(tmp_path, "lm", str(age))
        journal.begin(10, "host")
        journal.add(Answer(question="q", value={}, cost_s=1))
        os.utime(tmp_path / journal.name, (time.time() - age * 24 * 3600.0,) * 2)
    assert [Path(entry.name).stem for entry in collect(tmp_path, 4).leftovers] == ["40"]

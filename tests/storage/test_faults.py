"""A small form of ``python -m benchmarks.faults``, and that it would find what it looks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import REMOTE, Finding, Ground, findings
from benchmarks.faults.operations import OPERATIONS
from benchmarks.faults.shim import Shim
from storage import local_root
from storage.errors import StoreError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BY_NAME = {operation.name: operation for operation in OPERATIONS}


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("faults"))


def bad(found: Iterator[Finding]) -> list[Finding]:
    tried = list(found)
    assert tried
    return [finding for finding in tried if finding.lost or finding.torn or finding.tracebacks]


@pytest.mark.parametrize(
    ("name", "stride"),
    [("append", 5), ("compaction", 12), ("publish", 1), ("promotion", 1), ("gc", 3)],
)
def test_a_kill_loses_and_tears_nothing(name: str, stride: int, ground: Ground) -> None:
    assert bad(findings(ground, BY_NAME[name], ("kill",), stride=stride, repaired=6, power_cuts=False)) == []


@pytest.mark.parametrize("name", ["promotion"])
def test_the_power_going_with_a_disk_that_fails_or_is_full_loses_and_tears_nothing(name: str, ground: Ground) -> None:
    assert bad(findings(ground, BY_NAME[name], ("kill", "EIO", "ENOSPC"), stride=4, repaired=3)) == []


@pytest.mark.long
@pytest.mark.server
def test_lost_requests_and_answers_of_an_object_store_lose_no_data(s3_store: str, tmp_path: Path) -> None:
    far = Ground(tmp_path, s3_store.removeprefix("s3://"))
    assert bad(findings(far, BY_NAME["publish"], REMOTE, stride=3)) == []


def test_unflushed_writes_are_found(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_root, "fsync", lambda path: None)
    assert bad(findings(ground, BY_NAME["promotion"], ("kill",), stride=5, repaired=9)) != []


def test_a_full_disk_while_a_bundle_is_filled_is_an_error_of_the_store(ground: Ground) -> None:
    root, folder = ground.fresh()
    with (
        Shim(folder, at=3, kind="ENOSPC"),
        pytest.raises(StoreError, match=r"Cannot write to the store .*: No space left"),
    ):
        BY_NAME["promotion"].do(root, lambda name: None)

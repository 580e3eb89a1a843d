"""A fact is found again only for the same candidate under the same conditions."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from tasks.environment.machine import host_conditions
from tasks.values.job import Fact
from tasks.values.proofs import Proof
from tasks.values.refs import CandidateRef

CANDIDATE, OTHER = (
    CandidateRef(kind="candidate", digest=digit * 64, recipe="int8", runtime="torchscript", size_bytes=1)
    for digit in "12"
)
FACT = Fact("proof", Proof, CANDIDATE, {"threads": 1})


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    store = ArtifactStore(tmp_path)
    for candidate in (CANDIDATE, OTHER):
        write(store, candidate, b"model")
    return store


def write(store: ArtifactStore, candidate: CandidateRef, content: bytes) -> None:
    with store.create(candidate.kind, candidate.digest, {}) as folder:
        (folder / "model.ts").write_bytes(content)


def test_a_kept_value_is_found_with_all_its_numbers(store: ArtifactStore) -> None:
    assert FACT.find(store) is None
    FACT.keep(Proof(int8_time_share=0.25, instructions={"vnni": 1.0}, saturation=math.nan), store)
    found = FACT.find(store)
    assert found is not None
    assert (found.int8_time_share, found.instructions) == (0.25, {"vnni": 1.0})
    assert found.saturation is not None
    assert math.isnan(found.saturation)


@pytest.mark.parametrize(
    "other",
    [
        Fact("proof", Proof, OTHER, {"threads": 1}),
        Fact("proof", Proof, CANDIDATE, {"threads": 2}),
        Fact("evaluation", Proof, CANDIDATE, {"threads": 1}),
    ],
)
def test_another_candidate_condition_or_kind_has_its_own_value(store: ArtifactStore, other: Fact[Proof]) -> None:
    FACT.keep(Proof(int8_time_share=0.25), store)
    assert other.find(store) is None
    other.keep(Proof(int8_time_share=0.5), store)
    assert FACT.find(store) == Proof(int8_time_share=0.25)


def test_a_candidate_that_was_built_again_with_other_files_has_its_own_value(store: ArtifactStore) -> None:
    FACT.keep(Proof(int8_time_share=0.25), store)
    shutil.rmtree(store.path(CANDIDATE.kind, CANDIDATE.digest))
    write(store, CANDIDATE, b"other bytes")
    assert FACT.find(store) is None


def test_a_lower_instruction_set_is_another_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    before = host_conditions("torch")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2-test")
    assert host_conditions("torch") != before
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    assert host_conditions("torch", "not-installed") != before

"""The hand-over of one workload: decisions on rows, a real store of bundles, and what is said to have come of them."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flows.handover import Handover, hand_over
from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.errors import BundleError, StoreError
from storage.seal import SIGNATURE, Signer
from tasks.publish.manifest import Provenance
from tasks.publish.package import BundleRef, package
from tasks.values.job import Workspace
from tasks.values.results import CandidateResult, Failure, Incumbent, RunInfo, UnknownIncumbent, WorkloadResult
from tests.flows.test_fan_out import JOB
from tests.flows.test_fan_out import candidate as evaluated
from tests.storage.bundle_files import fill, signer_of
from tests.tasks.decide.test_gate import row, workload

NIGHT = dt.date(2026, 11, 21)
INT8, HALF, FLOAT = "int8/torchscript", "half/torchscript", "float/torchscript"


def candidate(name: str) -> CandidateResult:
    recipe, _, runtime = name.partition("/")
    made = evaluated(recipe, runtime)
    assert made.built is not None
    digest = hashlib.sha256(name.encode()).hexdigest()
    return made.model_copy(update={"built": made.built.model_copy(update={"digest": digest})})


@dataclass
class Site:
    """A store and its nights; the content of its bundles is a few bytes."""

    root: Path
    signer: Signer | None = None
    nights: int = 0
    packaged: list[str] = field(default_factory=list)

    @property
    def bundles(self) -> BundleStore:
        return BundleStore(self.root, self.signer)

    def current(self) -> str:
        pointer = self.bundles.pointer("demo")
        return pointer.version if pointer else ""

    def incumbent(self, **changes: Any) -> Incumbent | None:
        """What was found out about the bundle that is current now."""
        return Incumbent(version=self.current(), **changes) if self.current() else None

    def night(
        self,
        rows: list[dict[str, Any]],
        incumbent: Incumbent | UnknownIncumbent | None,
        instead: Callable[[], BundleRef] | None = None,
    ) -> Handover:
        """Hand over after a night with these measurements; `instead` takes the place of packaging."""
        self.nights += 1
        run = RunInfo(run_id=f"r{self.nights}", night=NIGHT + dt.timedelta(self.nights - 1), profile="quick")
        result = WorkloadResult(
            workload=workload(),
            job=JOB,
            candidates=(candidate(INT8), candidate(HALF), candidate(FLOAT)),
            incumbent=incumbent,
        )

        def make(made: Provenance, replacing: str | None) -> BundleRef:
            self.packaged.append(str(made.candidate.name))
            if instead is not None:
                return instead()
            workspace = Workspace(ArtifactStore(self.root))
            with workspace.store.create(made.candidate.kind, made.candidate.digest, {}):
                pass  # the candidate has no files that a bundle could lack
            return package(made, workspace, self.bundles, replacing)

        return hand_over(result, rows, run, self.bundles, package=make, renew=partial(self.bundles.renew, "demo"))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    def fill_and_seal(
        folder: Path, version: str, made: Provenance, workspace: Workspace, signer: Signer | None
    ) -> None:
        fill(folder, made.candidate.digest.encode())
        if signer is not None:
            (folder / SIGNATURE).write_bytes(signer.sign_bundle(folder))

    # Loading and running a model takes seconds; tests/tasks/bundle makes real ones.
    monkeypatch.setattr("tasks.publish.package._fill", fill_and_seal)
    return Site(tmp_path / "store")


FIRST = [row(INT8)]
# The current bundle's own files were timed with a challenger that is twice as fast.
FASTER = [row(INT8, setting="incumbent"), row(HALF, over_incumbent=2.0, over_incumbent_low=1.9)]
# Tonight's candidate is the current bundle to the byte, and nothing is faster.
SAME = [row(INT8), row(HALF, over_incumbent=0.6, over_incumbent_low=0.5)]


def failing(error: Exception) -> Callable[[], BundleRef]:
    def fail() -> BundleRef:
        raise error

    return fail


def decided(outcome: Handover) -> dict[str, str]:
    assert outcome.judgement is not None
    return {str(each.name): each.decision for each in outcome.judgement.decisions}


def stays(outcome: Handover) -> bool | None:
    assert outcome.judgement is not None
    assert outcome.judgement.incumbent is not None
    return outcome.judgement.incumbent.stays


def serial(site: Site) -> int:
    pointer = site.bundles.pointer("demo")
    assert pointer is not None
    return pointer.serial


def test_a_first_winner_is_current_and_a_faster_one_replaces_it(site: Site) -> None:
    first = site.night(FIRST, None)
    assert (first.version, first.problem) == (site.current(), "")
    assert decided(first) == {INT8: "promote"}
    second = site.night(FASTER, site.incumbent())
    assert (second.version, second.problem, stays(second)) == (site.current(), "", False)
    assert second.version != first.version


@pytest.mark.slow
def test_an_unknown_current_bundle_is_not_replaced_and_the_run_says_so(site: Site) -> None:
    first = site.night(FIRST, None).version
    killed = site.incumbent(failure=Failure(stage="evaluate", error="its process was killed"))
    for found, why in (
        (UnknownIncumbent(reason="find incumbent: ended after 60 s"), "find incumbent: ended after 60 s"),
        (killed, "evaluate: its process was killed"),
    ):
        outcome = site.night(FASTER, found)
        assert site.current() == outcome.version == first
        assert site.packaged == [INT8]
        assert (decided(outcome), stays(outcome)) == ({HALF: "hold"}, True)
        assert outcome.problem == f"the current bundle is unknown, so nothing was promoted: {why}"


def test_an_unreadable_pointer_is_not_no_pointer(site: Site) -> None:
    site.night(FIRST, None)
    found = site.incumbent()
    (site.root / "handoff/demo/current.json").write_text("{")
    outcome = site.night(FASTER, found)
    assert (outcome.version, stays(outcome)) == ("", None)
    assert "current.json is damaged" in outcome.problem
    assert decided(outcome) == {HALF: "hold"}


@pytest.mark.slow
def test_what_a_person_made_current_during_the_night_was_not_compared_and_stays(site: Site) -> None:
    first = site.night(FIRST, None).version
    second = site.night(FASTER, site.incumbent()).version
    found = site.incumbent()
    site.bundles.roll_back("demo", by="someone", reason="worse")
    outcome = site.night([row(HALF, setting="incumbent"), row(INT8, over_incumbent_low=1.9, over_incumbent=2)], found)
    assert site.current() == outcome.version == first
    assert decided(outcome) == {INT8: "hold"}
    assert f"someone switched from {second} to {first} while the night ran" in outcome.problem


@pytest.mark.parametrize("error", [BundleError("the model differs by 1"), KeyError("a defect")])
def test_a_winner_that_cannot_be_packaged_replaces_nothing_and_what_stays_is_renewed(
    site: Site, error: Exception
) -> None:
    site.signer = signer_of()
    first = site.night(FIRST, None).version
    before = serial(site)
    outcome = site.night(FASTER, site.incumbent(), instead=failing(error))
    assert site.current() == outcome.version == first
    assert (decided(outcome), stays(outcome)) == ({HALF: "hold"}, True)
    assert outcome.problem.startswith(f"{HALF} was chosen, but its bundle could not be built: ")
    assert str(error).rstrip(".") in outcome.problem
    assert outcome.problem.endswith(f"; {first} stays current")
    assert serial(site) > before


def test_a_switch_whose_answer_was_lost_has_happened(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = site.night(FIRST, None).version
    promote = BundleStore.promote

    def promote_and_lose(*arguments: Any, **options: Any) -> None:
        promote(*arguments, **options)
        raise StoreError("Cannot write to the store: the connection was closed.")

    monkeypatch.setattr(BundleStore, "promote", promote_and_lose)
    outcome = site.night(FASTER, site.incumbent())
    assert site.current() == outcome.version != first
    assert (decided(outcome), stays(outcome)) == ({HALF: "promote"}, False)
    assert "is current, but a later step failed: Cannot write to the store" in outcome.problem


def test_content_that_somebody_rolled_back_from_is_excluded_and_the_runner_up_wins(site: Site) -> None:
    first = site.night([row(HALF)], None).version
    deployed = row(HALF, setting="incumbent")
    faster = row(INT8, speedup=9.0, over_incumbent=2.0, over_incumbent_low=1.9)
    site.night([deployed, faster], site.incumbent())
    site.bundles.roll_back("demo", by="someone", reason="worse")
    alone = site.night([deployed, faster], site.incumbent())
    assert (alone.version, stays(alone), decided(alone)) == (first, True, {INT8: "pass"})
    runner_up = row(FLOAT, over_incumbent=1.2, over_incumbent_low=1.1)
    outcome = site.night([deployed, faster, runner_up], site.incumbent())
    assert (decided(outcome), stays(outcome)) == ({INT8: "pass", FLOAT: "promote"}, False)
    assert site.current() == outcome.version != first
    assert site.packaged == [HALF, INT8, FLOAT]


def test_what_stays_is_renewed_whether_it_is_tonights_candidate_or_its_own_files(site: Site) -> None:
    site.signer = signer_of()
    first = site.night(FIRST, None).version
    for rows, same_as in ((SAME, INT8), ([row(INT8, setting="incumbent"), *SAME[1:]], None)):
        before = serial(site)
        outcome = site.night(rows, site.incumbent(same_as=same_as))
        assert (outcome.version, outcome.problem, stays(outcome)) == (first, "", True)
        assert serial(site) > before


def test_content_that_the_key_did_not_sign_is_packaged_again_and_recorded_as_replaced(site: Site) -> None:
    first = site.night(FIRST, None).version
    site.signer = signer_of()
    outcome = site.night(SAME, site.incumbent(same_as=INT8))
    assert site.current() == outcome.version != first
    assert stays(outcome) is False
    assert outcome.judgement is not None
    assert outcome.judgement.incumbent is not None
    assert "packaged again" in outcome.judgement.incumbent.reason

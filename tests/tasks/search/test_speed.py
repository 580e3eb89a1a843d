"""The speed of trials, and a complete search, with real stages and processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks import stages
from tasks.benchmark.stage import BenchmarkCandidate
from tasks.job import Job, Workspace
from tasks.machine import this_machine
from tasks.refs import CandidateRef
from tasks.results import Evaluation
from tasks.search import speed
from tasks.search.race import Race
from tasks.search.scoreboard import Scoreboard
from tasks.search.selection import Selection
from tasks.search.space import space, variants
from tasks.search.trial import Build, Drop, Found, Screen, Time
from tasks.workload import Workload, read_workload
from tests.tasks.benchmark.planted import TINY
from tests.tasks.benchmark.test_stage import _with_other_outputs
from tests.tasks.domains.custom.own import own
from tests.tasks.outliers import write_networks
from tests.tasks.pipeline import build, evaluate, job_of
from tests.tasks.search.simulated import ask

_WORKLOAD = Path(__file__).parents[3] / "flows" / "workloads" / "lstm-demo.toml"


@pytest.mark.slow
def test_trials_are_timed_in_two_launches_and_one_with_other_outputs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "PROFILE", TINY)
    store = ArtifactStore(tmp_path)
    job = job_of(read_workload(_WORKLOAD), store)
    names = [("float", "eager"), ("dynamic-int8", "eager"), ("float", "torchscript")]
    built = [build(job, *name, store) for name in names]
    baseline, *others = [
        BenchmarkCandidate(candidate=made, outputs=evaluate(job, made, store).outputs) for made in built
    ]
    others[1] = _with_other_outputs(others[1], store)
    timed = stages.time_trials(Workspace(store), job, baseline, others)
    assert set(timed.speeds) == {"dynamic-int8/eager"}
    assert set(timed.refused) == {"float/torchscript"}
    measured = timed.speeds["dynamic-int8/eager"]
    assert 0 < measured.low < measured.value < measured.high
    assert measured.launches == 2


class Here:
    """The search's requests, answered one after the other in this process."""

    def __init__(self, job: Job[Workload], store: ArtifactStore) -> None:
        self.job, self.workspace, self.selection = job, Workspace(store), Selection.of(job.dataset)
        self.built: dict[str, CandidateRef] = {}
        self.evaluations: dict[tuple[str, int], Evaluation] = {}
        self.baseline = build(job, *job.workload.baseline(), store)
        types = {leaf.type for leaf in self.baseline.coverage}
        assert job.workload.search
        self.goal = goal = job.workload.search.goal(job.workload.gate)
        trials, other = space(job.workload, types, this_machine()), partial(variants, job.workload)
        self.race = Race(Scoreboard(goal.objective, goal.max_quality_drop, self.selection.samples, trials), other)

    def evaluation(self, candidate: CandidateRef, samples: int) -> Evaluation:
        key = (candidate.name, samples)
        if key not in self.evaluations:
            judged = self.selection.job(self.job, samples)
            self.evaluations[key] = stages.evaluate(self.workspace, judged, candidate)
        return self.evaluations[key]

    def timed(self, candidate: CandidateRef) -> BenchmarkCandidate:
        outputs = self.evaluation(candidate, self.selection.samples[0]).outputs
        return BenchmarkCandidate(candidate=candidate, outputs=outputs)

    def run(self) -> None:
        while request := ask(self.race):
            trials = [self.race.board.trials[number - 1] for number in request.numbers]
            if isinstance(request, Time):
                candidates = [self.timed(self.built[trial.name]) for trial in trials]
                found = stages.time_trials(self.workspace, self.job, self.timed(self.baseline), candidates)
                for trial in trials:
                    self.race.tell(trial.number, Found(speed=found.speeds[trial.name]))
                continue
            for trial in trials:
                if isinstance(request, Build):
                    try:
                        made = stages.build(self.workspace, self.job, trial.recipe, trial.runtime)
                    except QuantizationError as error:  # for example, an engine without a fast kernel
                        self.race.tell(trial.number, Found(failed=str(error)))
                        continue
                    self.built[trial.name] = made
                    self.race.tell(trial.number, Found(size_bytes=made.size_bytes))
                elif isinstance(request, Screen):
                    before = self.evaluation(self.baseline, request.samples)
                    after = self.evaluation(self.built[trial.name], request.samples)
                    [compared] = stages.compare(self.workspace, before, [after])
                    self.race.tell(trial.number, Found(drop=Drop.of(compared, before, self.goal.quality_unit)))
                else:
                    layers = stages.rank_layers(self.workspace, self.job, trial.recipe)
                    self.race.tell(trial.number, Found(layers=layers))


@pytest.mark.long
def test_a_search_keeps_the_layer_in_float_that_outliers_spoil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "PROFILE", TINY)
    folder = write_networks(tmp_path)
    workload = own(
        folder,
        data={"kind": "factory", "factory": "arrival_net:read"},
        model={"kind": "factory", "factory": "arrival_net:Net"},
        checkpoint={"kind": "uri", "uri": str(folder / "planted.pth")},
        recipe=[{"name": "float", "method": "none", "runtimes": ["torchscript"]}],
        benchmark={"baseline": "float/torchscript"},
        search={"max_quality_drop": 3.0, "objective": "smallest", "methods": ["static"], "runtimes": ["torchscript"]},
    )
    store = ArtifactStore(tmp_path / "store")
    search = Here(job_of(workload, store), store)
    assert search.selection.split == "calibration"
    search.run()
    best = search.race.board.best()
    assert best is not None
    assert best.origin == "kept-float"
    assert "third" in best.recipe.exclude
    assert best.drop is not None
    assert best.drop.high <= 3.0
    failed = [trial for trial in search.race.board.trials if trial.origin in ("space", "variant")]
    assert {trial.outcome for trial in failed} == {"failed"}
    assert all("third" in trial.recipe.exclude for trial in search.race.board.finalists(3))

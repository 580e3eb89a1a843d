"""The speed of trials, with real stages and processes, and the order in which layers are kept in float."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks.data.tensor_files import GOLDEN, Golden
from tasks.measure.benchmark.stage import BenchmarkCandidate
from tasks.run import stages
from tasks.search import speed
from tasks.search.speed import in_order, time_shares
from tasks.search.trial import RankedLayer
from tasks.values.job import Workspace
from tasks.values.refs import ArtifactRef
from tasks.workload import read_workload
from tests.tasks.domains.custom.own import own
from tests.tasks.measure.benchmark.planted import TINY
from tests.tasks.outliers import write_networks
from tests.tasks.pipeline import build, evaluate, job_of

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
    golden = Golden.read(store.path(others[1].outputs.kind, others[1].outputs.digest) / GOLDEN)
    altered = Golden(golden.inputs, tuple(output + 1 for output in golden.outputs))
    with store.create("outputs", "a" * 64, {}) as folder:
        (folder / GOLDEN).write_bytes(altered.to_bytes())
    others[1] = others[1].model_copy(update={"outputs": ArtifactRef(kind="outputs", digest="a" * 64)})
    timed = stages.time_trials(Workspace(store), job, baseline, others)
    assert set(timed.refused) == {others[1].candidate.name}
    ((name, measured),) = timed.speeds.items()
    assert name == others[0].candidate.name
    assert 0 < measured.low < measured.value < measured.high
    assert measured.launches == 2


class Slow(nn.Module):
    """A layer whose call takes so many seconds of the clock; the first call takes ten times as long."""

    def __init__(self, clock: SimpleNamespace, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds, self.is_warm = clock, seconds, False

    def forward(self, values: Tensor) -> Tensor:
        self.clock.now += self.seconds * (1 if self.is_warm else 10)
        self.is_warm = True
        return values


def test_a_layers_share_counts_every_call_of_it_and_no_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    once, twice = Slow(clock, 4.0), Slow(clock, 0.5)
    model = nn.Sequential(once, twice, Slow(clock, 5.0), twice)
    shares = time_shares(model, (torch.zeros(1),), ["0", "1"])
    assert shares == pytest.approx({"0": 0.4, "1": 0.1})
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@given(noise=st.floats(0.9, 1.1), others=st.floats(0.9, 1.1))
def test_noise_in_the_timings_does_not_change_the_order_of_similar_layers(noise: float, others: float) -> None:
    layers = [
        RankedLayer(module=module, type="Linear", sqnr_db=sqnr_db, time_share=share * factor)
        for module, sqnr_db, share, factor in (
            ("harmless", 40.0, 0.05, others),
            ("long", 15.0, 0.12, noise),
            ("middle", 17.7, 0.07, others),
            ("short", 22.8, 0.02, 1.0),
            ("noisy", 5.0, 0.06, noise),
        )
    ]
    assert [layer.module for layer in in_order(layers)] == ["noisy", "long", "middle", "short", "harmless"]


@pytest.mark.slow
def test_the_layer_that_outliers_spoil_comes_first_and_each_has_a_share(tmp_path: Path) -> None:
    folder = write_networks(tmp_path)
    workspace = Workspace(ArtifactStore(folder / "store"))
    workload = own(
        folder,
        data={"kind": "factory", "factory": "arrival_net:read"},
        model={"kind": "factory", "factory": "arrival_net:Net"},
        checkpoint={"kind": "uri", "uri": str(folder / "planted.pth")},
        recipe=[{"name": "float", "method": "none"}, {"name": "static", "method": "static"}],
    )
    job = job_of(workload, workspace.store)
    layers = stages.rank_layers(workspace, job, job.workload.recipe_named("static"))
    assert {layer.module for layer in layers} == {"first", "second", "third", "fourth", "last"}
    noisiest = min(layers, key=lambda layer: layer.sqnr_db)
    assert noisiest.module == layers[0].module == "third"
    assert all(0 < layer.time_share < 1 for layer in layers)
    assert sum(layer.time_share for layer in layers) < 1.5

"""The order in which layers are kept in float: shares of time by a clock that only the layers move."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from tasks import stages
from tasks.job import Job, Workspace
from tasks.search import speed
from tasks.search.speed import in_order, time_shares
from tasks.search.trial import RankedLayer
from tasks.workload import Workload
from tests.tasks.domains.custom.own import own
from tests.tasks.outliers import write_networks
from tests.tasks.pipeline import job_of


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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job[Workload], Workspace]:
    folder = write_networks(tmp_path_factory.mktemp("order"))
    store = ArtifactStore(folder / "store")
    workload = own(
        folder,
        data={"kind": "factory", "factory": "arrival_net:read"},
        model={"kind": "factory", "factory": "arrival_net:Net"},
        checkpoint={"kind": "uri", "uri": str(folder / "planted.pth")},
        recipe=[{"name": "float", "method": "none"}, {"name": "static", "method": "static"}],
    )
    return job_of(workload, store), Workspace(store)


@pytest.mark.slow
def test_the_layer_that_outliers_spoil_comes_first_and_each_has_a_share(made: tuple[Job[Workload], Workspace]) -> None:
    job, workspace = made
    layers = stages.rank_layers(workspace, job, job.workload.recipe_named("static"))
    assert {layer.module for layer in layers} == {"first", "second", "third", "fourth", "last"}
    noisiest = min(layers, key=lambda layer: layer.sqnr_db)
    assert noisiest.module == layers[0].module == "third"
    assert all(0 < layer.time_share < 1 for layer in layers)
    assert sum(layer.time_share for layer in layers) < 1.5

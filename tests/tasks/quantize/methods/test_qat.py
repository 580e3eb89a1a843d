from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError, StoreError
from tasks.quantize import fine_tune
from tasks.quantize.graph.convert import convert
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.graph.prepare import prepare
from tasks.quantize.methods import Qat, QatRecipe
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec, spec_of
from tasks.quantize.state import flatten_state, load_flat_state
from tests.tasks.quantize import networks

Sources = Callable[..., ModelSource]


def recipe(**changes: object) -> Spec:
    return spec_of(
        QatRecipe(name="qat", method="qat", **{"epochs": 2, "batch_size": 16, "learning_rate": 1e-3, **changes})
    )


def work_of(source: ModelSource) -> list[Path]:
    return list((source.workspace.store.root / "work").iterdir())


@pytest.mark.parametrize("network", ["with_dropout", "Residual", "SharedRelu", "OwnStubs"])
@pytest.mark.parametrize("graph", ["auto", "fx"])
@pytest.mark.slow
def test_a_trained_model_converts_and_its_skeleton_takes_its_state(
    network: str, graph: str, source_of: Sources, engine: str
) -> None:
    source = source_of(network)
    converted = Qat().converter().convert(source.float_model(), recipe(graph=graph, epochs=1), source)
    model = getattr(networks, network)().eval()
    skeleton = Qat().converter().skeleton(model, recipe(graph=graph), converted.graph, source.example_inputs)
    load_flat_state(skeleton, flatten_state(converted.model.state_dict()))
    inputs = source.example_inputs.values()
    assert torch.equal(skeleton(*inputs), converted.model(*inputs))
    # Functional dropout of the training mode must not stay in the graph.
    assert torch.equal(converted.model(*inputs), converted.model(*inputs))
    assert any(row.quantized for row in converted.coverage)


def test_training_changes_weights_and_leaves_no_work_behind(source_of: Sources, engine: str) -> None:
    source = source_of("with_dropout")
    short, long = (
        Qat().converter().convert(source.float_model(), chosen, source).model
        for chosen in (recipe(epochs=1), recipe(epochs=3, learning_rate=0.01))
    )
    inputs = source.example_inputs.values()
    assert not torch.equal(short(*inputs), long(*inputs))
    assert not work_of(source)


@pytest.mark.parametrize("graph", ["eager", "fx"])
@pytest.mark.slow
def test_excluded_modules_stay_float_through_training(graph: str, source_of: Sources, engine: str) -> None:
    source = source_of()
    converted = Qat().converter().convert(source.float_model(), recipe(graph=graph, epochs=1, exclude=("m0",)), source)
    assert {row.module for row in converted.coverage if not row.quantized} == {"m0", "m1"}


def test_frozen_observers_and_statistics_do_not_move(source_of: Sources, engine: str) -> None:
    source, chosen = source_of(), recipe(epochs=1, freeze_observers_after=0, freeze_batch_norm_after=0)
    model, examples = source.float_model(), source.example_inputs
    statistics = model.get_submodule("m1").running_mean.clone()
    prepared = prepare(model, make_plan(model, chosen, examples), chosen, examples)
    state = fine_tune.fine_tuned(prepared, chosen, source).state_dict()
    assert torch.equal(
        next(tensor for name, tensor in state.items() if name.endswith("m0.bn.running_mean")), statistics
    )
    assert next(tensor for name, tensor in state.items() if name.endswith("max_val")).isfinite().all()


def test_a_loss_that_is_not_finite_is_refused(source_of: Sources, engine: str) -> None:
    source = source_of()
    with pytest.raises(QuantizationError, match=r"diverged|NaN or infinity"):
        Qat().converter().convert(source.float_model(), recipe(epochs=3, learning_rate=1e30), source)
    assert not work_of(source)


_KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from storage.artifacts import ArtifactStore
from tasks.job import Workspace
from tasks.quantize.engine import quantized_engine
from tasks.quantize.methods import Qat
from tasks.build import model_source
from tasks.workload import Workload
from tests.tasks.pipeline import job_of
from tests.tasks.quantize.conftest import IMAGES
from tests.tasks.quantize.methods.test_qat import recipe

store, target, last_step = ArtifactStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
model = {"kind": "factory", "factory": "tests.tasks.quantize.networks:with_dropout"}

def progress(done, total, unit=""):
    if unit.startswith("training batches"):
        print(int(done), flush=True)
        if done == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

source = model_source(job_of(Workload.model_validate(IMAGES | {"model": model}), store), Workspace(store, progress))
with quantized_engine("x86"):
    model = Qat().converter().convert(source.float_model(), recipe(epochs=3), source).model
torch.save(model(*source.example_inputs.values()), target)
"""


@pytest.mark.slow
@pytest.mark.long
def test_training_that_was_killed_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    def run(store: str, kill_at: int) -> subprocess.CompletedProcess[str]:
        arguments = ["-W", "ignore", "-c", _KILLED, str(tmp_path / store), str(tmp_path / f"{store}.pt"), str(kill_at)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
        )

    whole = run("whole", -1)
    assert whole.returncode == 0, whole.stderr
    # 48 images in batches of 16: the fifth step lies in the middle of the second epoch of three.
    assert run("killed", 5).returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "killed" / "work").glob("*/*")] == ["epoch.safetensors"]
    resumed = run("killed", -1)
    assert resumed.returncode == 0, resumed.stderr
    assert [int(line) for line in resumed.stdout.split()] == [4, 5, 6, 7, 8, 9]
    assert torch.equal(torch.load(tmp_path / "whole.pt"), torch.load(tmp_path / "killed.pt"))
    assert not list((tmp_path / "killed" / "work").iterdir())


def test_an_error_of_the_system_keeps_the_epochs_that_were_finished(
    source_of: Sources, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = fine_tune.save_tensors

    def full(tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
        if path.name == fine_tune.WEIGHTS:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(tensors, path, metadata)

    source, chosen = source_of(), recipe(epochs=1, seed=7)
    with monkeypatch.context() as patched:
        patched.setattr(fine_tune, "save_tensors", full)
        with pytest.raises(StoreError, match="No space"):
            Qat().converter().convert(source.float_model(), chosen, source)
    assert len(list((source.workspace.store.root / "work").glob("*/epoch.safetensors"))) == 1
    Qat().converter().convert(source.float_model(), chosen, source)
    assert not work_of(source)


def test_equal_trainings_side_by_side_give_equal_models(source_of: Sources, engine: str) -> None:
    source, chosen = source_of(), recipe(graph="eager", seed=8)
    examples = source.example_inputs

    def trained(model: nn.Module) -> nn.Module:
        return fine_tune.fine_tuned(model, chosen, source)

    models = [source.float_model() for _ in range(3)]
    prepared = [prepare(model, make_plan(model, chosen, examples), chosen, examples) for model in models]
    with ThreadPoolExecutor(3) as pool:
        first, *others = (convert(model)(*examples.values()) for model in pool.map(trained, prepared))
    assert all(torch.equal(first, other) for other in others)
    assert not work_of(source)


@pytest.mark.slow
def test_batches_of_one_are_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        recipe(batch_size=1)


@pytest.mark.slow
def test_a_work_folder_is_made_once_under_the_store(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    assert store.work_folder("a" * 64) == store.work_folder("a" * 64) == tmp_path / "work" / ("a" * 64)

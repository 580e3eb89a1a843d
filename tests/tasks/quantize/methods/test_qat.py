from __future__ import annotations

import copy
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from storage.artifacts import ArtifactStore
from storage.errors import QuantizationError
from tasks.domains.image_classification import images
from tasks.domains.image_classification.sections import FactorySpec
from tasks.quantize import fine_tune
from tasks.quantize.base import Context
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.methods import qat
from tasks.quantize.methods.qat import Qat, QatRecipe
from tasks.quantize.methods.static import PARTS as STATIC_PARTS
from tasks.quantize.methods.static import observed
from tasks.quantize.state import flatten_state, restore_state, versions_of
from tasks.quantize.training_state import alone
from tests.tasks.quantize import networks

Contexts = Callable[..., Context]


def recipe(**changes: object) -> QatRecipe:
    return QatRecipe(name="qat", method="qat", **{"epochs": 2, "batch_size": 16, "learning_rate": 1e-3, **changes})


def with_dropout() -> nn.Module:
    model = networks.plain()
    model.m8 = nn.Sequential(nn.Flatten(), nn.Dropout(0.2)).eval()
    return model


@pytest.mark.parametrize("make", [with_dropout, networks.Residual, networks.SharedRelu, networks.OwnStubs])
@pytest.mark.parametrize("flow", ["auto", "fx"])
def test_a_trained_model_converts_and_its_skeleton_takes_its_state(
    make: Callable[[], nn.Module], flow: str, images_context: Contexts, engine: str
) -> None:
    context = images_context()
    converted = Qat().convert(make().eval(), recipe(flow=flow, epochs=1), context)
    state = converted.model.state_dict()
    skeleton = Qat().skeleton(make().eval(), recipe(flow=flow), converted.flow, context.example_inputs)
    skeleton.load_state_dict(restore_state(*flatten_state(state), versions_of(state)))
    inputs = context.example_inputs.values()
    assert torch.equal(skeleton(*inputs), converted.model(*inputs))
    # Functional dropout of the training mode must not stay in the graph.
    assert torch.equal(converted.model(*inputs), converted.model(*inputs))
    assert any(row.quantized for row in converted.coverage)


def test_training_changes_weights_and_leaves_no_work_behind(images_context: Contexts, engine: str) -> None:
    context = images_context()
    torch.manual_seed(1)
    short = Qat().convert(with_dropout(), recipe(epochs=1), context).model
    torch.manual_seed(1)
    long = Qat().convert(with_dropout(), recipe(epochs=3, learning_rate=0.01), context).model
    inputs = context.example_inputs.values()
    assert not torch.equal(short(*inputs), long(*inputs))
    assert not list((context.store.root / "work").iterdir())


@pytest.mark.parametrize("flow", ["eager", "fx"])
def test_excluded_modules_stay_float_through_training(flow: str, images_context: Contexts, engine: str) -> None:
    converted = Qat().convert(networks.plain(), recipe(flow=flow, epochs=1, exclude=("m0",)), images_context())
    assert {row.module for row in converted.coverage if not row.quantized} == {"m0", "m1"}


def test_frozen_observers_and_statistics_do_not_move(images_context: Contexts, engine: str, tmp_path: Path) -> None:
    context, chosen = images_context(), recipe(epochs=1, freeze_observers_after=0, freeze_batch_norm_after=0)
    model = networks.plain()
    statistics = model.get_submodule("m1").running_mean.clone()
    prepared = observed(model, make_plan(model, chosen, context.example_inputs), chosen, context.example_inputs)
    trained = fine_tune.fine_tune(prepared, chosen, context, tmp_path, torch.device("cpu"))
    names = {name.rpartition(".")[2]: tensor for name, tensor in trained.state_dict().items()}
    assert torch.equal(next(t for n, t in trained.state_dict().items() if n.endswith("m0.bn.running_mean")), statistics)
    assert names["max_val"].isfinite().all()


def test_a_loss_that_is_not_finite_is_refused(images_context: Contexts, engine: str) -> None:
    with pytest.raises(QuantizationError, match=r"diverged|NaN or infinity"):
        Qat().convert(networks.plain(), recipe(epochs=3, learning_rate=1e30), images_context())


_KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from storage.artifacts import ArtifactStore
from tasks.models import example_inputs
from tasks.prepare import prepare
from tasks.quantize.base import Context
from tasks.quantize.engine import quantized_engine
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.methods.qat import Qat
from tasks.workload import Workload
from tests.tasks.quantize.conftest import IMAGES
from tests.tasks.quantize.test_qat import recipe, with_dropout

store, target, last_step = ArtifactStore(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
workload = Workload.model_validate(IMAGES)
dataset = prepare(workload, store)

def progress(done, total, unit=""):
    if unit == "training batches":
        print(int(done), flush=True)
        if done == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(5)
context = Context(workload, dataset, store, example_inputs(workload, dataset, store), progress)
with quantized_engine("x86"):
    model = Qat().convert(with_dropout(), recipe(epochs=3), context).model
torch.save(model(*context.example_inputs.values()), target)
"""


@pytest.mark.slow
def test_training_that_was_killed_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    def run(store: str, kill_at: int) -> subprocess.CompletedProcess[str]:
        arguments = [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            _KILLED,
            str(tmp_path / store),
            str(tmp_path / f"{store}.pt"),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run([*arguments, str(kill_at)], env=environment, capture_output=True, text=True, check=False)

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


def test_a_work_folder_is_made_once_under_the_store(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    assert store.work_folder("a" * 64) == store.work_folder("a" * 64) == tmp_path / "work" / ("a" * 64)


def of_model(context: Context, **arguments: object) -> Context:
    spec = FactorySpec(kind="factory", factory="tests.tasks.quantize.networks:plain", arguments=arguments)
    return replace(context, workload=context.workload.model_copy(update={"model": spec}))


def test_equal_weights_of_another_model_are_another_training(images_context: Contexts) -> None:
    model, context = networks.plain(), images_context()
    first, again, other = (
        qat._training_digest(model, recipe(), of_model(context, **arguments))
        for arguments in ({"mode": "nearest"}, {"mode": "nearest"}, {"mode": "bilinear"})
    )
    assert first == again
    assert first != other


def test_a_result_that_cannot_run_leaves_no_training_to_go_on_from(
    images_context: Contexts, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_args: object) -> None:
        raise QuantizationError("no quantized kernel")

    monkeypatch.setattr(qat, "try_out", refused)
    context = images_context()
    with pytest.raises(QuantizationError, match="no quantized kernel"):
        Qat().convert(networks.plain(), recipe(epochs=1), context)
    assert not list((context.store.root / "work").iterdir())


def test_an_error_of_the_system_keeps_the_epochs_that_were_finished(
    images_context: Contexts, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "elsewhere")

    context, model = images_context(), networks.plain()
    with monkeypatch.context() as patched:
        patched.setattr(qat, "finished", full)
        with pytest.raises(OSError, match="No space"):
            Qat().convert(copy.deepcopy(model), recipe(epochs=1), context)
    assert len(list((context.store.root / "work").glob("*/epoch.safetensors"))) == 1
    Qat().convert(copy.deepcopy(model), recipe(epochs=1), context)
    assert not list((context.store.root / "work").iterdir())


def test_equal_trainings_side_by_side_give_equal_models(images_context: Contexts, engine: str) -> None:
    context, chosen, model = images_context(), recipe(flow="eager"), networks.plain()
    plan = make_plan(model, chosen, context.example_inputs)

    def trained(prepared: nn.Module) -> nn.Module:
        with alone(context.store, "c" * 64) as work:
            return qat._trained(prepared, chosen, context, work)

    copies = [copy.deepcopy(model) for _ in range(3)]
    prepared = [observed(each, plan, chosen, context.example_inputs) for each in copies]
    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(trained, prepared)
    inputs = context.example_inputs.values()
    assert all(torch.equal(first(*inputs), other(*inputs)) for other in others)
    assert not list((context.store.root / "work").iterdir())


def test_batches_of_one_are_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        recipe(batch_size=1)


def test_how_training_images_become_batches_decides_the_result() -> None:
    assert images in qat.PARTS
    assert images in STATIC_PARTS

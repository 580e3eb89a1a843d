"""ExecuTorch programs: they compute what torch does, say what is int8, and refuse what they would misread."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.errors import MeasurementError, QuantizationError
from tasks.data.outputs import distance, tensors_of
from tasks.measure.proof.child import doubts_about
from tasks.runtimes.base import CandidateFiles, runtime_named
from tasks.values.job import Job
from tasks.values.refs import CandidateRef
from tasks.workload import Workload
from tasks.workload.recipe import METHODS, RUNTIMES
from tests.tasks import pipeline
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.publish.conftest import Made
from tests.tasks.runtimes.conftest import MakeJob
from tests.tasks.runtimes.test_exported import ATTENTION, left_float

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("executorch") is None, reason="the executorch extra is not installed"),
]
RUNTIME = "executorch"
STATIC = {"method": "static", "calibration_batches": 2, "calibration_batch_size": 8}
ROWS = {"method": "dynamic-per-row"}
MIXED = """
class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.place, self.head = nn.Linear(3, 8), nn.Linear(4, 4), nn.Linear(5, 2)
        self.register_buffer("places", torch.randn(5, 4))
    def forward(self, rows):
        left, right = self.body(rows).chunk(2, dim=1)
        masks = torch.cat([left > 0, right > 0], dim=1)
        kept = torch.where(masks, torch.cat([left, right], dim=1), 0.0)
        total = kept[:, :4] + kept[:, 4:] + self.place(self.places.unsqueeze(0)).mean(1)
        return self.head(nn.functional.layer_norm(nn.functional.pad(total, (0, 1)), (5,)))

class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(10, 4), nn.Linear(4, 2)
    def forward(self, rows):
        return self.head(self.bag(rows.abs().long()))
"""


def recipe(**keys: Any) -> dict[str, Any]:
    return {"name": "tried", "runtimes": [RUNTIME], **keys}


def custom(folder: Path, model: str, tried: dict[str, Any]) -> tuple[Job[Workload], ArtifactStore]:
    """A job for a model of a user's own code, and a store."""
    write(folder, CODE + ATTENTION + MIXED)
    recipes = [{"name": "float", "method": "none"}, tried]
    workload = own(folder, model={"kind": "factory", "factory": f"own_code:{model}"}, recipe=recipes)
    store = ArtifactStore(folder / "store")
    return pipeline.job_of(workload, store), store


def built(job: Job[Workload], store: ArtifactStore) -> CandidateRef:
    return pipeline.build(job, "tried", RUNTIME, store)


def off(job: Job[Workload], candidate: CandidateRef, store: ArtifactStore, *inputs: Tensor) -> float:
    """The largest distance of the candidate's outputs from the float model's in torch."""
    reference = pipeline.opened(pipeline.build(job, "float", "eager", store), store)
    with torch.inference_mode():
        found, expected = pipeline.opened(candidate, store)(*inputs), reference(*inputs)
    return max(map(distance, tensors_of(found), tensors_of(expected)))


def pictures(count: int) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"method": "dynamic", "per_channel": True}, 'use the "dynamic-per-row" method'),
        ({"method": "dynamic", "dtype": "float16"}, "need int8 weights"),
        ({"method": "cast"}, 'does not support the "cast" method'),
        ({"method": "none", "memory_format": "channels-last"}, "neither torch's memory formats"),
        (STATIC | {"weights": "per-tensor", "engine": "qnnpack"}, ""),
        (ROWS, ""),
    ],
)
def test_a_recipe_is_refused_in_one_line_or_not_at_all(keys: dict[str, Any], reason: str) -> None:
    asked = METHODS[keys["method"]].model_validate({"name": "tried", "runtimes": ["eager"], **keys})
    obstacle = RUNTIMES[RUNTIME].obstacle(asked)
    assert bool(obstacle) is bool(reason)
    assert reason in obstacle
    assert "\n" not in obstacle


@pytest.mark.parametrize("runtime", sorted(set(RUNTIMES) - {RUNTIME}))
def test_no_other_runtime_takes_4_bit_weights(runtime: str) -> None:
    asked = METHODS["dynamic-per-row"].model_validate(recipe(**ROWS, linear_bits=4))
    assert RUNTIMES[runtime].obstacle(asked)


@pytest.mark.parametrize(
    ("keys", "least", "most"),
    [
        ({"method": "none"}, 0, 1e-5),
        (STATIC, 1e-6, 0.05),
        (STATIC | {"weights": "per-tensor"}, 1e-6, 0.05),
        (ROWS, 1e-6, 0.01),
        ({"method": "qat", "epochs": 1, "batch_size": 16}, 1e-6, 0.1),
    ],
    ids=["float", "static", "per-tensor", "per-row", "qat"],
)
def test_outputs_are_near_torchs_for_any_number_of_images(
    images: MakeJob, store: ArtifactStore, keys: dict[str, Any], least: float, most: float
) -> None:
    job = images(recipe(**keys), network="Residual")
    candidate = built(job, store)
    floats = left_float(candidate)
    if keys["method"] in ("static", "qat"):
        assert floats == {}
    elif keys is ROWS:
        assert set(floats) == {"conv1", "bn1", "conv2", "bn2"}
    for count in (1, 2, 40):  # lowering a convolution that was traced with two images would allow 15
        assert least <= off(job, candidate, store, pictures(count)) <= most
    with pytest.raises(MeasurementError, match=r"shapes \[\['any', 3, 16, 16\]\], but not \[\[300, 3, 16, 16\]\]"):
        pipeline.opened(candidate, store)(pictures(300))


def test_channels_last_images_and_simultaneous_calls_give_the_same_outputs(
    images: MakeJob, store: ArtifactStore
) -> None:
    model = pipeline.opened(built(images(recipe(**STATIC)), store), store)
    inputs = [pictures(count) for count in (1, 2, 3, 4)] * 10
    expected = [model(each)[0] for each in inputs]  # type: ignore[index]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: model(each.contiguous(memory_format=torch.channels_last))[0], inputs))
    assert all(map(torch.equal, found, expected))


def test_excluded_layers_stay_float_with_the_norms_folded_into_them(images: MakeJob, store: ArtifactStore) -> None:
    candidate = built(images(recipe(**STATIC, exclude=["conv2"]), network="Residual"), store)
    assert left_float(candidate) == dict.fromkeys(("conv2", "bn2"), "excluded by the recipe")


def test_products_belong_to_the_modules_whose_weights_they_use(tmp_path: Path) -> None:
    assert left_float(built(*custom(tmp_path, "Attention", recipe(**STATIC | {"calibration_batches": 1})))) == {}


@pytest.mark.parametrize(
    ("keys", "floats"), [(STATIC | {"calibration_batch_size": 4}, set()), (ROWS, {"place"})], ids=["static", "per-row"]
)
def test_parts_masks_padding_and_layers_of_constants_take_any_number_of_rows(
    tmp_path: Path, keys: dict[str, Any], floats: set[str]
) -> None:
    job, store = custom(tmp_path, "Mixed", recipe(**keys))
    candidate = built(job, store)
    assert set(left_float(candidate)) == floats
    for count in (1, 2, 7):
        assert off(job, candidate, store, torch.rand(count, 3)) < 0.05


def test_operators_without_kernels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match=r"cannot load the program: .* --debug shows operators without kernels"):
        built(*custom(tmp_path, "Bags", recipe(**ROWS)))


def test_a_recurrent_model_takes_one_length_and_its_unrolled_products_are_int8(
    words: MakeJob, store: ArtifactStore
) -> None:
    job = words(recipe(**ROWS), benchmark={"baseline": "float/eager", "sequence_length": 2})
    candidate = built(job, store)
    assert left_float(candidate) == {"encoder": "the recipe does not name the type Embedding"}
    assert candidate.notes == ("the axis time of tokens has length 2, because ExecuTorch unrolls LSTM",)
    for batch in (1, 3):
        state = torch.rand(2, 2, batch, 8)
        assert off(job, candidate, store, torch.arange(2 * batch).reshape(2, batch) % 5, *state) < 0.02
    # ExecuTorch itself accepts three steps, because they are fewer than 256 columns of two, and skips the last step.
    with pytest.raises(MeasurementError, match=r"\[2, 'any'\].* but not \[\[3, 1\].* axis time of tokens has length 2"):
        pipeline.opened(candidate, store)(torch.zeros(3, 1, dtype=torch.int64), *torch.zeros(2, 2, 1, 8))


def test_linear_layers_take_4_bit_weights_in_groups_of_32(words: MakeJob, store: ArtifactStore) -> None:
    model = {"kind": "word-lm", "embedding_size": 64, "hidden_size": 64, "layers": 1}
    job = words(recipe(**ROWS, linear_bits=4), benchmark={"baseline": "float/eager", "sequence_length": 2}, model=model)
    candidate = built(job, store)
    assert set(left_float(candidate)) == {"encoder", "rnn"}
    state = torch.rand(2, 1, 1, 64)
    assert 0.005 < off(job, candidate, store, torch.arange(2).reshape(2, 1) % 5, *state) < 0.1


def test_what_cannot_be_int8_is_refused(words: MakeJob, images: MakeJob, store: ArtifactStore) -> None:
    with pytest.raises(QuantizationError, match="does not quantize any embedding"):
        built(words(recipe(**ROWS, embedding_bits=8), benchmark={"sequence_length": 1}), store)
    with pytest.raises(QuantizationError, match=r'"tried" recipe does not quantize any module[^\n]+conv1 \(Conv2d\)'):
        built(images(recipe(**ROWS), network="SharedRelu"), store)
    with pytest.raises(QuantizationError, match=r"cannot be exported for ExecuTorch: .") as caught:
        built(images(recipe(method="none"), network="DataDependent"), store)
    assert "\n" not in str(caught.value)


def test_a_program_that_computes_something_else_is_refused(
    images: MakeJob, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.runtimes.executorch import make

    open_program = make.open_program
    monkeypatch.setattr(make, "open_program", lambda *given: lambda inputs: open_program(*given)(inputs * 2))
    with pytest.raises(
        QuantizationError, match=r"the ExecuTorch program and the model differ by \d+\.\d% of the range"
    ):
        built(images(recipe(method="none"), network="rectified"), store)


def test_the_event_trace_shows_the_kernels_of_xnnpack_and_the_portable_ones(
    images: MakeJob, store: ArtifactStore
) -> None:
    pytest.importorskip("pandas", reason="executorch imports pandas to read traces")
    for method in (STATIC, {"method": "none"}):
        candidate = built(images(recipe(**method), network="Residual"), store)
        files, opener = CandidateFiles.find(candidate, store), runtime_named(RUNTIME).opener()
        operators = opener.profile(files, opener.open(files, 1), [pictures(2)], 1, 5)
        found = {(operator.type, operator.arithmetic) for operator in operators}
        products = {arithmetic for kind, arithmetic in found if kind.startswith(("XNNPACK Conv", "XNNPACK Fully"))}
        assert products - {"convert"} == {"int8" if method is STATIC else "float"}
        assert ("portable mean.out", "float") in found
        assert not list(doubts_about(operators, candidate.coverage, None, None))


def test_one_thread_means_one(images: MakeJob, store: ArtifactStore) -> None:
    folder = CandidateFiles.find(built(images(recipe(method="none")), store), store).folder
    code = (
        "import os, sys, torch; from pathlib import Path; from tasks.runtimes.executorch.open import open_program\n"
        "torch.set_num_threads(1); threads = lambda: len(os.listdir('/proc/self/task')); before = threads()\n"
        "call = open_program(Path(sys.argv[1]), int(sys.argv[2]))\n"
        "call(torch.rand(64, 3, 16, 16)); print(threads() - before)"
    )
    for count in (1, 3):
        command = [sys.executable, "-c", code, str(folder / "model.pte"), str(count)]
        done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
        assert done.stdout == f"{count - 1}\n"
        assert done.stderr == ""


def test_a_bundle_verifies_without_the_exporter_and_its_card_shows_a_program_that_runs(
    images: MakeJob, store: ArtifactStore, tmp_path: Path
) -> None:
    job = images(recipe(**STATIC))
    candidate = built(job, store)
    made = Made(job, candidate, pipeline.evaluate(job, candidate, store), store)
    bundle = tmp_path / made.package(BundleStore(tmp_path)).location
    program = (
        "import runpy, sys\nsys.modules['torchao'] = sys.modules['executorch.exir'] = None  # importing them fails\n"
        f"sys.argv = ['verify.py', {str(bundle)!r}]\nrunpy.run_path({str(bundle / 'verify.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("good")
    card = (bundle / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "ExecuTorch also runs the file on Arm processors, but its speed was measured on x86-64." in card
    assert "| needs | x86_64 or aarch64, executorch " in card
    usage = card.partition("```python\n")[2].partition("```")[0]
    program = f"import torch\nimages = torch.rand(2, 3, 16, 16)\n{usage}\nprint(outputs[0].shape)"
    done = subprocess.run([sys.executable, "-c", program], cwd=bundle, capture_output=True, text=True, check=False)
    assert done.stdout == "torch.Size([2, 4])\n", program + done.stderr

"""What the runtimes that take an exported model have in common: they compute the same, keep axes free, hand over."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import torch
from numpy.typing import NDArray
from onnxruntime.quantization.calibrate import TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.errors import QuantizationError
from tasks.data.outputs import distance, tensors_of
from tasks.environment.machine import Machine, this_machine
from tasks.measure.proof.child import doubts_about
from tasks.quantize.engine import BFLOAT16
from tasks.runtimes.base import CandidateFiles, runtime_named
from tasks.runtimes.exported import ExportedMaker, all_int8
from tasks.runtimes.onnxruntime import check as onnx_checker
from tasks.runtimes.onnxruntime import make as onnx_quantize
from tasks.values.proofs import int8_share
from tasks.values.refs import CandidateRef
from tasks.workload import Workload
from tests.tasks import pipeline
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.publish.conftest import Made
from tests.tasks.quantize.conftest import IMAGES
from tests.tasks.runtimes.conftest import MakeJob

EXPORTED = ["onnxruntime", "openvino"]
needs_bfloat16 = pytest.mark.skipif(
    not set(BFLOAT16) & set(this_machine().isa), reason="this processor has no instructions for bfloat16"
)


def recipe(runtime: str, method: str, **keys: Any) -> dict[str, Any]:
    return {"name": "tried", "method": method, "runtimes": [runtime], **keys}


def int8_modules_of(candidate: CandidateRef, store: ArtifactStore, runtime: str) -> frozenset[str]:
    maker = runtime_named(runtime).maker()
    assert isinstance(maker, ExportedMaker)
    found = all_int8(maker.products(CandidateFiles.find(candidate, store).folder))
    return frozenset(path for path, is_int8 in found.items() if is_int8)


def int8_weights(folder: Path, runtime: str) -> list[NDArray[np.int8]]:
    """The int8 constants with several dimensions: weights, but no biases."""
    if runtime == "openvino":
        nodes = openvino.Core().read_model(folder / "model.xml").get_ordered_ops()
        found = [node.data for node in nodes if node.get_type_name() == "Constant"]
    else:
        found = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(folder / "model.onnx").graph.initializer]
    return [each for each in found if each.dtype == np.int8 and each.ndim > 1]


def left_float(candidate: CandidateRef) -> dict[str, str]:
    return {module.module: module.reason for module in candidate.coverage if not module.quantized}


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.slow
def test_lengths_and_batches_may_differ_from_the_example(words: MakeJob, store: ArtifactStore, runtime: str) -> None:
    job = words(recipe(runtime, "dynamic"))
    model = pipeline.opened(pipeline.build(job, "tried", runtime, store), store)
    reference = pipeline.opened(pipeline.build(job, "float", "eager", store), store)
    for length, batch in ((1, 1), (3, 5), (25, 1)):
        tokens = torch.arange(length * batch).reshape(length, batch) % 5
        h, c = torch.full((2, batch, 8), 0.1), torch.full((2, batch, 8), -0.1)
        with torch.inference_mode():
            found, expected = model(tokens, h, c), reference(tokens, h, c)
        assert isinstance(found, tuple)
        assert isinstance(expected, tuple)
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            assert (one - other).abs().max() < 0.05


@pytest.mark.parametrize(
    ("runtime", "left"), [("onnxruntime", {}), ("openvino", {"rnn": "NNCF left this LSTM in float"})], ids=EXPORTED
)
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"embedding_bits": 8, "exclude": ["decoder"]}, {"decoder": "excluded by the recipe"}),
        (
            {"modules": ["Linear"]},
            {
                "encoder": "the recipe does not name the type Embedding",
                "rnn": "the recipe does not name the type LSTM",
            },
        ),
    ],
    ids=["excluded", "linear"],
)
@pytest.mark.slow
def test_a_dynamic_recipe_quantizes_the_types_that_it_names(
    words: MakeJob,
    store: ArtifactStore,
    runtime: str,
    left: dict[str, str],
    keys: dict[str, Any],
    expected: dict[str, str],
) -> None:
    job = words(recipe(runtime, "dynamic", **keys))
    candidate = pipeline.build(job, "tried", runtime, store)
    assert left_float(candidate) == left | expected
    one_scale = runtime == "onnxruntime" and "embedding_bits" in keys
    assert candidate.notes == ("each embedding has one scale for its complete table",) * one_scale
    floats = pipeline.evaluate(job, pipeline.build(job, "float", "eager", store), store)
    assert pipeline.evaluate(job, candidate, store).quality == pytest.approx(floats.quality, abs=2e-3)


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.parametrize(
    ("observer", "weights"),
    [("min-max", "per-channel"), ("moving-average", "per-channel"), ("histogram", "per-tensor")],
)
@pytest.mark.slow
def test_a_static_recipe_quantizes_every_layer_and_stays_close(
    images: MakeJob, store: ArtifactStore, runtime: str, observer: str, weights: str
) -> None:
    keys = {"activation_observer": observer, "weights": weights, "calibration_batch_size": 4}
    job = images(recipe(runtime, "static", **keys))
    candidate = pipeline.build(job, "tried", runtime, store)
    assert not left_float(candidate)
    with_weights = {module.module for module in candidate.coverage if module.type in ("Conv2d", "Linear")}
    assert int8_modules_of(candidate, store, runtime) == with_weights
    inputs = pipeline.source_of(job.workload, store).example_inputs.values()
    reference = pipeline.opened(pipeline.build(job, "float", "eager", store), store)
    with torch.inference_mode():
        (found,), expected = pipeline.opened(candidate, store)(*inputs), reference(*inputs)  # type: ignore[misc]
    assert isinstance(expected, torch.Tensor)
    assert 0 < (found - expected).abs().max() < 0.1 * (expected.max() - expected.min())


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.slow
def test_an_excluded_module_stays_float_when_the_runtime_loads_the_model(store: ArtifactStore, runtime: str) -> None:
    """ONNX Runtime would quantize the weights of this convolution of this network by itself."""
    model = {"kind": "factory", "factory": "benchmarks.planted:network", "arguments": {"seed": 0}}
    recipes = [*IMAGES["recipe"], recipe(runtime, "static", exclude=["convs.2"])]
    job = pipeline.job_of(Workload.model_validate(IMAGES | {"model": model, "recipe": recipes}), store)
    candidate = pipeline.build(job, "tried", runtime, store)
    inputs = list(pipeline.source_of(job.workload, store).example_inputs.values())
    files = CandidateFiles.find(candidate, store)
    opener = runtime_named(runtime).opener()
    operators = opener.profile(files, opener.open(files, 1), inputs, 1, 3)
    assert int8_share(operators) > 0
    assert not [each for each in doubts_about(operators, candidate.coverage, None, None) if "counts as float" in each]


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.parametrize("network", [pytest.param("with_dropout", marks=pytest.mark.long), "Residual"])
@pytest.mark.slow
def test_a_trained_recipe_computes_like_torchs_own_candidate(
    images: MakeJob, store: ArtifactStore, runtime: str, network: str
) -> None:
    trained = recipe(runtime, "qat", epochs=1, batch_size=16) | {"runtimes": ["eager", runtime]}
    job = images(trained, network=network)
    torchs = pipeline.build(job, "tried", "eager", store)
    candidate = pipeline.build(job, "tried", runtime, store)
    assert set(left_float(candidate)) == set(left_float(torchs))
    inputs = pipeline.source_of(job.workload, store).example_inputs.values()
    with torch.inference_mode():
        (found,), expected = pipeline.opened(candidate, store)(*inputs), pipeline.opened(torchs, store)(*inputs)  # type: ignore[misc]
    assert isinstance(expected, torch.Tensor)
    assert (found - expected).abs().max() <= 0.02 * (expected.max() - expected.min())


@pytest.mark.slow
def test_a_trained_model_runs_in_int8_kernels(images: MakeJob, store: ArtifactStore) -> None:
    job = images(recipe("onnxruntime", "qat", epochs=1, batch_size=16) | {"runtimes": EXPORTED})
    files = {name: CandidateFiles.find(pipeline.build(job, "tried", name, store), store) for name in EXPORTED}
    inputs = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    opener = runtime_named("onnxruntime").opener()  # its sessions disable an optimizer that users' sessions do not
    opened = opener.open(files["onnxruntime"], 1)
    kinds = Counter(operator.type for operator in opener.profile(files["onnxruntime"], opened, [inputs], 1, 2))
    assert (kinds["QLinearConv"], kinds["QGemm"], kinds["Conv"], kinds["Gemm"]) == (3, 2, 0, 0)
    path = files["onnxruntime"].folder / "model.onnx"
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,), expected = theirs.run(None, {theirs.get_inputs()[0].name: inputs.numpy()}), tensors_of(opened(inputs))[0]
    assert np.array_equal(found, expected.numpy())

    core = openvino.Core()
    model = core.read_model(files["openvino"].folder / "model.xml")
    # The batch stays open: for a fixed one and one thread, OpenVINO fuses the Linear layers into a subgraph of its own.
    request = core.compile_model(model, "CPU", {"PERF_COUNT": True}).create_infer_request()
    request.infer([np.zeros((1, 3, 16, 16), np.float32)])
    types = ("Convolution", "FullyConnected")
    kernels = [each.exec_type for each in request.profiling_info if each.node_type.startswith(types)]
    assert len(kernels) == 5
    assert all(kernel.lower().endswith("i8") for kernel in kernels)


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.slow
def test_the_reference_of_a_static_model_rounds_as_it_does(images: MakeJob, store: ArtifactStore, runtime: str) -> None:
    files = CandidateFiles.find(pipeline.build(images(recipe(runtime, "static")), "tried", runtime, store), store)
    exact = runtime_named(runtime).opener().reference(files, 1)
    assert exact is not None
    inputs = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    opened = runtime_named(runtime).opener().open(files, 1)
    (found,), (expected,) = tensors_of(opened(inputs)), tensors_of(exact(inputs))
    assert distance(found, expected) < 0.02
    # The order of its float sums moves an activation to the next of its steps here and there; its int8 kernels do not.
    assert runtime != "openvino" or not found.equal(expected)


@pytest.mark.parametrize("vnni", [True, False], ids=["for-vnni", "for-others"])
@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.slow
def test_weights_keep_a_bit_free_without_vnni(
    images: MakeJob, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, runtime: str, vnni: bool
) -> None:
    monkeypatch.setattr(Machine, "has_vnni", property(lambda machine: vnni))
    files = CandidateFiles.find(pipeline.build(images(recipe(runtime, "static")), "tried", runtime, store), store)
    largest = [int(abs(weight.astype(np.int16)).max()) for weight in int8_weights(files.folder, runtime)]
    assert len(largest) == 5
    assert (max(largest) > 64) is vnni


@pytest.mark.skipif("avx2" not in this_machine().isa, reason="OpenVINO has other kernels on this processor")
@pytest.mark.slow
def test_products_with_compressed_weights_count_as_int8_where_openvino_rounds_their_activations(
    images: MakeJob, store: ArtifactStore
) -> None:
    job = images(recipe("openvino", "dynamic", modules=["Linear"]), network="perceptron")
    files = CandidateFiles.find(pipeline.build(job, "tried", "openvino", store), store)
    inputs = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    opener = runtime_named("openvino").opener()
    operators = opener.profile(files, opener.open(files, 1), [inputs], 1, 2)
    compressed = {each.arithmetic for each in operators if each.type.startswith("FullyConnectedCompressed")}
    rounds = {"avx512_vnni", "avx_vnni"} & set(this_machine().isa) and "amx_int8" not in this_machine().isa
    assert compressed == {"int8" if rounds else "float"}


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.slow
def test_a_model_that_cannot_be_exported_is_one_message(images: MakeJob, store: ArtifactStore, runtime: str) -> None:
    job = images(recipe(runtime, "none"), network="DataDependent")
    with pytest.raises(QuantizationError, match=r"The model cannot be exported to ONNX: .") as caught:
        pipeline.build(job, "tried", runtime, store)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@needs_bfloat16
@pytest.mark.slow
def test_bfloat16_is_openvinos_own_precision_on_the_float_file(images: MakeJob, store: ArtifactStore) -> None:
    floats, casts = recipe("openvino", "none"), recipe("openvino", "cast") | {"name": "cast"}
    job = images(floats, casts)
    inputs = pipeline.source_of(job.workload, store).example_inputs.values()
    with torch.inference_mode():
        (exact,), (short,) = (
            pipeline.opened(pipeline.build(job, name, "openvino", store), store)(*inputs)  # type: ignore[misc]
            for name in ("tried", "cast")
        )
    assert 1e-5 < (exact - short).abs().max() / exact.abs().max() < 3e-2


@pytest.mark.parametrize("runtime", EXPORTED)
@pytest.mark.parametrize("method", ["dynamic", "none", "qat"])
@pytest.mark.slow
def test_a_bundle_verifies_without_torch_and_its_card_shows_a_program_that_runs(
    words: MakeJob, images: MakeJob, store: ArtifactStore, tmp_path: Path, runtime: str, method: str
) -> None:
    job = images(recipe(runtime, "qat", epochs=1, batch_size=16)) if method == "qat" else words(recipe(runtime, method))
    candidate = pipeline.build(job, "tried", runtime, store)
    made = Made(job, candidate, pipeline.evaluate(job, candidate, store), store)
    bundle = tmp_path / made.package(BundleStore(tmp_path)).location
    program = (
        "import runpy, sys\nsys.modules['torch'] = None  # importing it fails\n"
        f"sys.argv = ['verify.py', {str(bundle)!r}]\nrunpy.run_path({str(bundle / 'verify.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("good")
    if method == "qat":
        return
    program = (bundle / "MODEL_CARD.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    inputs = "import numpy as np\ntokens = np.zeros((25, 1), np.int64)\nh = c = np.zeros((2, 1, 8), np.float32)\n"
    program = f"{inputs}{program}\nprint(len(outputs), outputs[0].shape)"
    done = subprocess.run([sys.executable, "-c", program], cwd=bundle, capture_output=True, text=True, check=False)
    assert done.stdout == "3 (25, 1, 17)\n", program + done.stderr


def test_a_broken_model_file_is_reported_with_both_versions() -> None:
    manifest = {"model": {"file": "model.onnx"}, "versions": {"onnxruntime": "1.2.3"}}
    told = r"(?s)onnxruntime \d.* cannot open the model \(.+\); install onnxruntime 1\.2\.3, which built the model$"
    with pytest.raises(RuntimeError, match=told):
        onnx_checker.open_model({"model.onnx": b"broken"}, manifest)


ATTENTION = """
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
    def forward(self, rows):
        steps = self.embed(rows.unsqueeze(-1))
        return self.head(self.attention(steps, steps, steps)[0].mean(1))
"""


@pytest.mark.slow
def test_nncf_quantizes_models_with_attention_as_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nncf

    write(tmp_path, CODE + ATTENTION)
    asked: list[object] = []
    quantize = nncf.quantize

    def watched(*arguments: Any, **settings: Any) -> object:
        asked.append(settings["model_type"])
        return quantize(*arguments, **settings)

    monkeypatch.setattr(nncf, "quantize", watched)
    recipes = [{"name": "float", "method": "none"}, recipe("openvino", "static")]
    workload = own(tmp_path, model={"kind": "factory", "factory": "own_code:Attention"}, recipe=recipes)
    store = ArtifactStore(tmp_path / "store")
    pipeline.build(pipeline.job_of(workload, store), "tried", "openvino", store)
    assert asked == [nncf.ModelType.TRANSFORMER]


ALIKE = """
from torch import nn

class Alike(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 2)
    def forward(self, rows):
        return self.head(1 + self.body(rows).sign() * 1.2e-7)
"""


@pytest.mark.slow
def test_only_activations_too_alike_for_a_histogram_are_quantized_by_their_extremes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, bool] = {}

    class Quantizer(QDQQuantizer):  # type: ignore[misc]
        def __init__(self, *given: Any, tensors_range: TensorsData, **keys: Any) -> None:
            kept.update({name: hasattr(found, "hist") for name, found in tensors_range.items()})
            super().__init__(*given, tensors_range=tensors_range, **keys)

    monkeypatch.setattr(onnx_quantize, "QDQQuantizer", Quantizer)
    write(tmp_path, CODE + ALIKE)
    recipes = [{"name": "float", "method": "none"}, recipe("onnxruntime", "static")]
    workload = own(tmp_path, model={"kind": "factory", "factory": "own_code:Alike"}, recipe=recipes)
    store = ArtifactStore(tmp_path / "store")
    candidate = pipeline.build(pipeline.job_of(workload, store), "tried", "onnxruntime", store)
    assert int8_modules_of(candidate, store, "onnxruntime") == {"body", "head"}
    assert set(kept.values()) == {True, False}
    (note,) = candidate.notes
    assert note.startswith(f"{list(kept.values()).count(False)} of {len(kept)} activation ranges are the extremes")

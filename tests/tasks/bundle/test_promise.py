"""What bundles promise on other processors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.digest import file_digest
from storage.errors import UnavailableError
from storage.seal import MANIFEST, SUMS, write_sums
from tasks.bundle.promise import HEADROOM, Seen, tolerances
from tasks.bundle.verify import run_checker, verify
from tasks.job import Workspace
from tasks.proof.processor import environment_of, lesser_processors
from tests.tasks import pipeline
from tests.tasks.bundle.conftest import Made
from tests.tasks.runtimes.conftest import MakeJob

STATIC = {"name": "int8", "method": "static", "calibration_batches": 1, "calibration_batch_size": 8}
shares = st.floats(1e-6, 0.1)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1))), st.floats(1e-3, 1e3), shares)
@pytest.mark.slow
def test_tolerances_cover_what_is_promised_and_never_exceed_the_methods(
    found: list[tuple[bool, float]], limit: float, share: float
) -> None:
    seen = [
        Seen(processor="avx2", promised=promised, differences={"logits": difference * limit})
        for promised, difference in found
    ]
    allowed = tolerances(seen, {"logits": limit}, share)["logits"]
    assert 0 < allowed <= limit
    for each in seen:
        assert not each.promised or allowed >= min(limit, HEADROOM * each.differences["logits"])


@pytest.mark.slow
def test_nothing_seen_is_the_methods_own_tolerance_but_for_files_of_one_kind_of_processor() -> None:
    assert tolerances([], {"logits": 5.0}, 0.05) == {"logits": 5.0}
    assert tolerances([], {"logits": 5.0}, 0.05, bound=True)["logits"] == pytest.approx(0.1)


@pytest.fixture(scope="module")
def bundles(images: MakeJob, store: ArtifactStore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bundle for each runtime that runs on many kinds of processors."""
    found = {}
    for runtime in ("torchscript", "onnxruntime", "openvino"):
        job, root = images(STATIC | {"runtimes": [runtime]}), tmp_path_factory.mktemp(runtime)
        candidate = pipeline.build(job, "int8", runtime, store)
        made = Made(job, candidate, pipeline.evaluate(job, candidate, store), store)
        found[runtime] = root / made.package(BundleStore(root)).location
    return found


@pytest.fixture
def processors(store: ArtifactStore) -> dict[str, dict[str, str]]:
    """Lesser processors that can be tried here, with what makes a process run as on them."""
    try:
        found = {name: environment_of(name, Workspace(store)) for name in lesser_processors()}
    except UnavailableError as error:
        pytest.skip(error.message)
    return found or pytest.skip("this processor has none of the instruction sets that could be missing")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["torchscript", "onnxruntime", "openvino"])
def test_a_bundle_verifies_on_every_processor_that_it_promises(
    bundles: dict[str, Path], processors: dict[str, dict[str, str]], runtime: str
) -> None:
    folder = bundles[runtime]
    golden = json.loads((folder / MANIFEST).read_text())["golden"]
    assert [each["processor"] for each in golden["seen_on"]] == list(processors)
    assert golden["cases"] == 10
    for each in golden["seen_on"]:
        answers = run_checker(folder, file_digest(folder / SUMS), runtime, variables=processors[each["processor"]])
        assert each["promised"] == (not answers.problem)
        assert answers.differences == pytest.approx(each["differences"], abs=1e-6)


@pytest.mark.slow
def test_another_first_choice_is_refused_however_small_the_difference(bundles: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(bundles["onnxruntime"], folder)
    tensors = load_file(folder / "golden.safetensors")
    logits = tensors["3.output.0"][0]
    first, second = logits.argsort()[::-1][:2]
    logits[second] = logits[first] + 1e-6 * abs(logits[first])
    save_file(tensors, folder / "golden.safetensors")
    manifest = json.loads((folder / MANIFEST).read_text())
    for output in manifest["model"]["outputs"]:
        output["tolerance"] = 1e6
    (folder / MANIFEST).write_text(json.dumps(manifest))
    write_sums(folder)
    report = verify(folder)
    assert not report.ok
    assert "the first choice is another one in 1 of " in report.problem

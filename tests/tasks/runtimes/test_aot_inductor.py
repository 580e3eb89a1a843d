"""Compiled packages: a compilation takes seconds, so that tests share what they can."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from tasks.runtimes.aot_inductor import make as aot_compile
from tasks.runtimes.aot_inductor.check import open_model
from tasks.runtimes.base import CandidateFiles, runtime_named
from tasks.values.job import Job
from tasks.values.refs import CandidateRef
from tasks.workload import Workload
from tests.tasks import pipeline
from tests.tasks.publish.conftest import Made
from tests.tasks.runtimes.conftest import MakeJob

pytestmark = [pytest.mark.slow, pytest.mark.long]

RUNTIME = "aot-inductor"
STATIC = {"calibration_batches": 2, "calibration_batch_size": 4}


def recipe(method: str, **keys: Any) -> dict[str, Any]:
    return {"name": "tried", "method": method, "runtimes": [RUNTIME], **keys}


def outputs(job: Job[Workload], name: str, runtime: str, store: ArtifactStore, *inputs: Tensor) -> tuple[Tensor, ...]:
    model = pipeline.opened(pipeline.build(job, name, runtime, store), store)
    with torch.inference_mode():
        found = model(*inputs)
    return found if isinstance(found, tuple) else (found,)  # type: ignore[return-value]


@pytest.fixture
def static(images: MakeJob) -> Job[Workload]:
    return images(recipe("static", **STATIC))


@pytest.fixture
def candidate(static: Job[Workload], store: ArtifactStore) -> CandidateRef:
    return pipeline.build(static, "tried", RUNTIME, store)


@pytest.fixture
def package(candidate: CandidateRef, store: ArtifactStore) -> Path:
    return CandidateFiles.find(candidate, store).folder / "model.pt2"


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What was found out about the compiler counts neither before the test nor after it."""
    aot_compile.target.cache_clear()
    yield
    aot_compile.target.cache_clear()


@pytest.fixture
def nothing_deprecated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all that upstream has deprecated refuse to work."""
    entries = [("torch.jit", name) for name in ("trace", "trace_module", "script", "load", "save", "freeze")]
    for place in ("torch.ao.quantization", "torch.ao.quantization.quantize_fx"):
        functions = {name for name, item in vars(sys.modules[place]).items() if isinstance(item, FunctionType)}
        entries += [(place, name) for name in functions if not name.startswith("_")]
    assert len(entries) > 30

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("deprecated")

    for place, name in entries:
        monkeypatch.setattr(f"{place}.{name}", refuse)


def test_every_layer_is_int8_in_the_graph_and_in_the_machine_code(candidate: CandidateRef, package: Path) -> None:
    assert all(module.quantized for module in candidate.coverage)
    with zipfile.ZipFile(package) as archive:
        sources = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".cpp"))
    assert len(re.findall(rb"aoti_torch_cpu__q(?:conv|linear)\w*\(", sources)) == 5
    assert b"num_threads(" not in sources
    assert candidate.size_bytes == package.stat().st_size
    assert not candidate.shared


def test_a_trained_recipe_is_int8_and_computes_like_torchs_own_candidate(images: MakeJob, store: ArtifactStore) -> None:
    job = images(recipe("qat", epochs=1, batch_size=16) | {"runtimes": ["eager", RUNTIME]}, network="EveryRow")
    candidate = pipeline.build(job, "tried", RUNTIME, store)
    assert all(module.quantized for module in candidate.coverage)
    example = pipeline.source_of(job.workload, store).example_inputs.values()
    (found,) = outputs(job, "tried", RUNTIME, store, *example)
    (expected,) = outputs(job, "tried", "eager", store, *example)
    assert (found - expected).abs().max() <= 0.02 * (expected.max() - expected.min())


def test_int8_is_near_float_and_not_float_for_any_number_of_images(
    static: Job[Workload], candidate: CandidateRef, store: ArtifactStore
) -> None:
    assert candidate.recipe == "tried"
    for count in (1, 2, 7):
        images = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))
        (found,) = outputs(static, "tried", RUNTIME, store, images)
        (expected,) = outputs(static, "float", "eager", store, images)
        assert found.shape == expected.shape
        assert 0 < (found - expected).abs().max() < 0.1 * (expected.max() - expected.min())


def test_a_bundle_verifies_with_torch_alone_and_only_where_it_was_compiled_for(
    static: Job[Workload], candidate: CandidateRef, store: ArtifactStore, tmp_path: Path
) -> None:
    made = Made(static, candidate, pipeline.evaluate(static, candidate, store), store)
    bundle = tmp_path / made.package(BundleStore(tmp_path)).location
    program = (
        "import runpy, sys\nsys.modules['torchao'] = None  # importing it fails\n"
        f"sys.argv = ['verify.py', {str(bundle)!r}]\nrunpy.run_path({str(bundle / 'verify.py')!r}, run_name='__main__')"
    )
    # Nothing is compiled, though torch would try the compiler out.
    environment = {"PATH": os.environ["PATH"], "LOGNAME": "nobody", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("good")
    assert not [path for path in tmp_path.glob("torchinductor_*/**/*") if path.is_file()]

    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    assert set(manifest["required_isa"]["instructions"]) <= set(Path("/proc/cpuinfo").read_text().split())
    assert manifest["engine"] is None
    files = {"model.pt2": (bundle / "model.pt2").read_bytes()}
    other = {**manifest, "versions": {**manifest["versions"], "torch": "1.0"}}
    with pytest.raises(RuntimeError, match=r"^the model needs torch 1\.0, but \d.* is installed; install torch 1\.0$"):
        open_model(files, other)
    lacking = {**manifest, "required_isa": {"instructions": ["avx2", "avx9000"]}}
    told = (
        r"^this processor lacks instructions that the model needs \(avx9000\); "
        r"use a host whose processor has these instructions$"
    )
    with pytest.raises(RuntimeError, match=told):
        open_model(files, lacking)


@pytest.mark.usefixtures("forgotten")
def test_int8_with_all_bits_needs_vnni_whatever_it_is_compiled_for(
    static: Job[Workload], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    floats, int8 = (static.workload.recipe_named(name) for name in ("float", "tried"))
    processor = aot_compile.processor()
    for more, expected in ((set(), []), ({"avx_vnni"}, ["avx_vnni"]), ({"avx_vnni", "avx512_vnni"}, ["avx512_vnni"])):
        words = processor - {"avx_vnni", "avx512_vnni"} | more
        monkeypatch.setattr(aot_compile, "processor", lambda words=words: words)
        assert runtime_named(RUNTIME).required_instructions(floats) == ["avx2", "fma", "f16c"]
        assert runtime_named(RUNTIME).required_instructions(int8) == ["avx2", "fma", "f16c", *expected]


@pytest.mark.usefixtures("nothing_deprecated")
def test_operators_of_our_own_go_with_the_package(
    words: MakeJob, store_with_operators: ArtifactStore, tmp_path: Path
) -> None:
    store = store_with_operators
    job = words(recipe("dynamic-per-row", embedding_bits=8))
    candidate = pipeline.build(job, "tried", RUNTIME, store)
    assert [module.module for module in candidate.coverage if module.quantized] == ["encoder", "rnn", "decoder"]
    floats, rows = (
        pipeline.evaluate(job, pipeline.build(job, *name, store), store)
        for name in (("float", "eager"), ("tried", RUNTIME))
    )
    assert rows.quality == pytest.approx(floats.quality, abs=2e-3)
    assert rows.quality == rows.quality_batched  # rows do not see each other, so they are evaluated together
    made = Made(job, candidate, rows, store)
    bundle = tmp_path / made.package(BundleStore(tmp_path)).location
    main, library = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["model"]["files"]
    assert main == "model.pt2"
    assert library.endswith(".so")
    program = (bundle / "MODEL_CARD.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    inputs = "import torch\ntokens = torch.zeros(3, 2, dtype=torch.int64)\nh = c = torch.zeros(2, 2, 8)\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{inputs}{program}\nprint(*outputs[0].shape)"],
        cwd=bundle, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "3 2 17\n", program + done.stderr

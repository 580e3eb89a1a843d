from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from storage.bundles import BundleStore
from storage.seal import read_manifest, write_sums
from tasks.publish.verify import checker_source, verify
from tests.storage.bundle_files import signer_of
from tests.tasks.publish.conftest import Made

# Each verification starts a process that imports torch.
pytestmark = pytest.mark.slow

# torch and what `import torch` needs; neither numpy nor safetensors nor anything of this project's.
TORCH_ALONE = (
    *("torch", "torchgen", "functorch", "typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2"),
    *("markupsafe", "filelock", "fsspec", "nvidia", "triton", "cuda", "setuptools"),
)


@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment that has torch alone."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent.parent
    folder = tmp_path_factory.mktemp("torch-alone")
    venv.create(folder, with_pip=False, symlinks=True)
    target = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for name in TORCH_ALONE:
        if (installed / name).exists():
            (target / name).symlink_to(installed / name)
    return folder / "bin" / "python"


def run(python: Path | str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environment)


def test_the_bundles_own_script_runs_where_there_is_torch_alone(
    torch_alone: Path, published: Path, copy: Callable[[], Path]
):
    assert run(torch_alone, "-c", "import torch").returncode == 0
    for name in ("numpy", "safetensors", "tasks", "prefect"):
        assert run(torch_alone, "-c", f"import {name}").returncode != 0
    good = run(torch_alone, published / "verify.py")
    assert (good.returncode, good.stdout[:5]) == (0, "good:"), good.stderr
    changed = copy()
    (changed / "model.ts").write_bytes(b"evil")
    bad = run(torch_alone, changed / "verify.py")
    assert bad.returncode == 1
    assert "model.ts" in bad.stdout


def test_the_script_in_the_bundle_is_short_and_is_the_one_that_nightquant_runs(published: Path):
    script = (published / "verify.py").read_text(encoding="utf-8")
    assert script == checker_source("torchscript")
    assert len(script.splitlines()) < 200
    assert "nightquant" not in script


def test_another_model_with_matching_checksums_is_found_by_its_outputs(
    copy: Callable[[], Path], other: Made, made: Made
):
    folder = copy()
    foreign = other.store.path(other.candidate.kind, other.candidate.digest)
    (folder / "model.ts").write_bytes((foreign / "model.ts").read_bytes())
    write_sums(folder)
    report = verify(folder)
    assert (report.ok, report.stage) == (False, "model")
    assert "differs by" in report.problem


def test_an_invalid_model_causes_a_message_and_not_a_traceback(copy: Callable[[], Path]):
    folder = copy()
    (folder / "model.ts").write_bytes(b"no zip at all")
    write_sums(folder)
    report = verify(folder)
    assert (report.ok, report.stage) == (False, "model")
    assert "Traceback" not in report.problem


def test_a_manifest_that_does_not_keep_to_its_schema_is_refused_before_the_model_is_loaded(copy: Callable[[], Path]):
    folder = copy()
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["model"]["file"] = "../model.ts"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_sums(folder)
    report = verify(folder)
    assert (report.ok, report.stage) == (False, "manifest")
    assert "$.model.file" in report.problem


def test_a_model_that_takes_too_long_is_refused(published: Path):
    report = verify(published, timeout_s=0.01)
    assert "did not finish" in report.problem


@pytest.mark.long
def test_only_the_signature_detects_a_completely_rewritten_bundle(made: Made, other: Made, tmp_path: Path):
    public = signer_of().key.public_key()
    folder = tmp_path / made.package(BundleStore(tmp_path, signer_of())).location
    good = verify(folder, public)
    assert (good.ok, good.signature) == (True, "valid")
    rewrite(folder)
    assert verify(folder).ok
    report = verify(folder, public)
    assert (report.ok, report.stage) == (False, "signature")


def rewrite(folder: Path) -> None:
    for name in ("MODEL_CARD.md", "SHA256SUMS"):
        (folder / name).chmod(0o644)
    (folder / "MODEL_CARD.md").write_text("Trust me.")
    write_sums(folder)


def test_a_bundle_that_is_exchanged_after_its_signature_was_checked_is_refused_before_it_is_loaded(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    signer = signer_of()
    folder = tmp_path / made.package(BundleStore(tmp_path, signer)).location

    def exchanged(path: Path) -> Any:
        manifest = read_manifest(path)
        rewrite(path)
        return manifest

    monkeypatch.setattr("tasks.publish.verify.read_manifest", exchanged)
    report = verify(folder, signer.key.public_key())
    assert (report.ok, report.stage) == (False, "model")
    assert "SHA256SUMS is missing or was changed" in report.problem

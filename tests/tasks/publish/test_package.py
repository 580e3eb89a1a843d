from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.errors import BundleError, ConflictError, StoreError
from storage.seal import SIGNATURE, check_manifest
from tasks.data.sections import TextCorpus
from tasks.publish.verify import verify
from tasks.workload import Workload
from tasks.workload.base import FetchedCheckpoint
from tests.storage.bundle_files import fill, signer_of, version
from tests.tasks.publish.conftest import NIGHT, Made

# Each verification starts a process that imports torch.
pytestmark = pytest.mark.slow


def test_a_bundle_contains_the_files_that_a_deploy_team_needs(published: Path, made: Made):
    assert {path.name for path in published.iterdir()} == {
        "model.ts",
        "manifest.json",
        "golden.safetensors",
        "MODEL_CARD.md",
        "verify.py",
        "sbom.cdx.json",
        "SHA256SUMS",
    }
    manifest = json.loads((published / "manifest.json").read_bytes())
    check_manifest(manifest)
    assert manifest["sources"]["quantized"] == made.candidate.digest
    assert manifest["engine"] == "qnnpack"
    assert [entry["name"] for entry in manifest["model"]["inputs"]] == ["inputs", "h", "c"]
    assert [entry["name"] for entry in manifest["model"]["outputs"]] == ["outputs", "h", "c"]
    assert manifest["measurements"][0]["metrics"] == made.evaluation.metrics
    assert "block_s" not in manifest["measurements"][0]
    model = made.store.path(made.candidate.kind, made.candidate.digest) / "model.ts"
    assert (published / "model.ts").read_bytes() == model.read_bytes(), "the measured bytes are handed over"
    assert verify(published).ok


def test_the_same_inputs_give_the_same_bytes(made: Made, tmp_path: Path):
    refs = [made.package(BundleStore(tmp_path / name)) for name in ("one", "two")]
    assert refs[0] == refs[1]
    folders = [tmp_path / name / refs[0].location for name in ("one", "two")]
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes(), path.name


def test_the_same_content_on_another_night_is_kept(made: Made, tmp_path: Path):
    bundles = BundleStore(tmp_path)
    first = made.package(bundles)
    again = made.package(bundles, night=NIGHT + timedelta(days=1), run_id="r2")
    assert (first.outcome, again.outcome) == ("published", "kept")
    assert first.version == again.version
    assert bundles.versions("tiny") == [first.version]
    current = bundles.pointer("tiny")
    assert current is not None
    assert len(current.history) == 1


@pytest.mark.long
def test_files_that_were_built_again_and_differ_are_published_as_measured(made: Made, tmp_path: Path):
    bundles = BundleStore(tmp_path / "handoff")
    first = made.package(bundles)
    rebuilt = replace(made, store=ArtifactStore(shutil.copytree(made.store.root, tmp_path / "store")))
    folder = rebuilt.store.path(made.candidate.kind, made.candidate.digest)
    made_from = json.loads((folder / "artifact.json").read_text())["made_from"]
    shutil.copytree(folder, tmp_path / "files", ignore=shutil.ignore_patterns("artifact.json"))
    shutil.rmtree(folder)
    with rebuilt.store.create(made.candidate.kind, made.candidate.digest, made_from) as again:
        shutil.copytree(tmp_path / "files", again, dirs_exist_ok=True)
        with zipfile.ZipFile(again / "model.ts", "a") as archive:  # the same model in another archive
            archive.comment = b"built again"
    with pytest.raises(BundleError, match="built again with other files"):
        rebuilt.package(bundles)
    second = rebuilt.package(bundles, night=NIGHT + timedelta(days=1))
    assert (second.outcome, second.version[10:]) == ("published", first.version[10:])
    assert b"built again" in (bundles.local_folder("tiny", second.version) / "model.ts").read_bytes()
    assert made.package(bundles, night=NIGHT + timedelta(days=2)).version == first.version


@pytest.mark.long
def test_content_that_comes_back_is_restored_and_content_that_was_withdrawn_is_not(
    made: Made, other: Made, tmp_path: Path
):
    bundles = BundleStore(tmp_path)
    first = made.package(bundles)
    second = other.package(bundles, night=NIGHT + timedelta(days=1))
    assert made.package(bundles, night=NIGHT + timedelta(days=2)).outcome == "restored"
    assert other.package(bundles, night=NIGHT + timedelta(days=3)).version == second.version
    bundles.roll_back("tiny", by="someone", reason="worse on our data")
    kept = other.package(bundles, night=NIGHT + timedelta(days=4))
    assert (kept.outcome, kept.version) == ("withdrawn", first.version)
    assert sorted(bundles.versions("tiny")) == sorted([first.version, second.version])


def test_a_bundle_that_became_current_after_the_comparison_is_not_replaced(made: Made, other: Made, tmp_path: Path):
    bundles = BundleStore(tmp_path)
    first = made.package(bundles, replacing=None)
    with pytest.raises(ConflictError, match=f"is {first.version} now.*while there was no current bundle"):
        other.package(bundles, replacing=None)
    current = bundles.pointer("tiny")
    assert current is not None
    assert (current.version, len(current.history)) == (first.version, 1)
    assert other.package(bundles, replacing=first.version).outcome == "restored"


@pytest.mark.long
def test_content_that_the_key_did_not_sign_is_packaged_again_unless_it_was_withdrawn(
    made: Made, published: Path, tmp_path: Path
):
    shutil.copytree(published, tmp_path / "handoff/tiny" / published.name)
    bundles = BundleStore(tmp_path, signer_of())
    anew = made.package(bundles, night=NIGHT + timedelta(days=1))
    assert (anew.outcome, anew.version[10:]) == ("published", published.name[10:])
    kept = made.package(bundles, night=NIGHT + timedelta(days=2))
    assert (kept.outcome, kept.version) == ("kept", anew.version)
    with bundles.draft() as folder:
        fill(folder)
        (folder / SIGNATURE).write_bytes(signer_of().sign_bundle(folder))
        bundles.publish(folder, "tiny", version(1))
    bundles.roll_back("tiny", version(1), by="someone", reason="worse")
    assert made.package(bundles, night=NIGHT + timedelta(days=3)).outcome == "withdrawn"


def test_a_model_whose_outputs_differ_from_the_evaluation_is_not_published(made: Made, other: Made, tmp_path: Path):
    bundles = BundleStore(tmp_path)
    foreign = other.evaluation.outputs
    source = other.store.path(foreign.kind, foreign.digest)
    with made.store.create(foreign.kind, foreign.digest, {}) as folder:
        (folder / "golden.safetensors").write_bytes((source / "golden.safetensors").read_bytes())
    with pytest.raises(BundleError, match="differs by"):
        made.package(bundles, evaluation=made.evaluation.model_copy(update={"outputs": foreign}))
    assert bundles.workloads() == []
    assert bundles.pointer("tiny") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_card_says_how_to_run_the_model_and_its_code_works(published: Path):
    card = (published / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "Apache-2.0" in card
    assert "1.5 (1.4 to 1.6)" in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert code is not None
    prefix = (
        "from safetensors.torch import load_file\ngolden = load_file('golden.safetensors')\n"
        "inputs, h, c = (golden[f'input.{name}'] for name in ('inputs', 'h', 'c'))\n"
    )
    suffix = "\nassert (outputs[0] - golden['output.0']).abs().max() < 0.05\n"
    done = subprocess.run(
        [sys.executable, "-c", prefix + code[1] + suffix], cwd=published, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_bundle_names_its_sources_without_passwords_and_signed_queries(made: Made, tmp_path: Path):
    secret = "https://user:SECRET@host/x.pth?X-Amz-Signature=abc"
    data = TextCorpus(kind="text", uri=f"zip://inner.txt::{secret}")
    checkpoint = FetchedCheckpoint(kind="uri", uri=secret, sha256="0" * 64)
    named = Workload.model_construct(**dict(made.job.workload) | {"data": data, "checkpoint": checkpoint})

    folder = tmp_path / made.package(BundleStore(tmp_path), job=replace(made.job, workload=named)).location

    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["workload"]["checkpoint"]["uri"] == "https://host/x.pth"
    assert manifest["workload"]["data"]["uri"] == "zip://inner.txt::https://host/x.pth"
    for path in folder.iterdir():
        assert not re.search(rb"SECRET|X-Amz", path.read_bytes()), path.name


def test_a_candidate_that_was_changed_since_it_was_made_is_neither_packaged_nor_signed(made: Made, tmp_path: Path):
    shutil.copytree(made.store.root, tmp_path / "store")
    store = ArtifactStore(tmp_path / "store")
    candidate = store.path(made.candidate.kind, made.candidate.digest)
    with (candidate / "model.ts").open("ab") as file:
        file.write(b"!")
    with pytest.raises(StoreError, match=r"is damaged: .*model\.ts"):
        replace(made, store=store).package(BundleStore(tmp_path / "handoff"))
    assert [path for path in (tmp_path / "handoff").rglob("*") if path.is_file()] == []

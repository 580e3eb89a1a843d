from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from storage.digest import digest_of, file_digest
from storage.errors import StoreError
from tasks.bundle.origin import installed_packages, sbom_of
from tasks.bundle.verify import verify
from tests.tasks.bundle.conftest import Made

pytestmark = pytest.mark.slow


def document(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="ascii"))


def test_the_statement_names_every_other_file_by_its_digest(published: Path):
    statement = document(published, "provenance.intoto.json")
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    others = {path.name for path in published.iterdir()} - {"provenance.intoto.json", "SHA256SUMS"}
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert digests == {name: file_digest(published / name) for name in others}


def test_its_materials_are_checkpoint_data_candidate_recipe_and_environment(published: Path, made: Made):
    predicate = document(published, "provenance.intoto.json")["predicate"]
    assert predicate["runDetails"]["builder"]["id"] == f"pkg:pypi/nightquant@{version('nightquant')}"
    definition = predicate["buildDefinition"]
    assert definition["externalParameters"] == {
        "workload": "tiny", "recipe": "int8", "runtime": "torchscript", "night": "2026-11-21",
    }  # fmt: skip
    materials = {each["name"]: each for each in definition["resolvedDependencies"]}
    assert set(materials) == {"checkpoint", "data", "quantized", "recipe", "environment"}
    for name, artifact in {
        "checkpoint": made.job.checkpoint, "data": made.job.dataset, "quantized": made.candidate,
    }.items():  # fmt: skip
        listed = made.store.path(artifact.kind, artifact.digest) / "artifact.json"
        assert materials[name]["digest"]["sha256"] == file_digest(listed)
        assert artifact.digest in materials[name]["uri"]
    content = base64.b64decode(materials["recipe"]["content"])
    assert hashlib.sha256(content).hexdigest() == materials["recipe"]["digest"]["sha256"]
    assert digest_of(json.loads(content)) == materials["recipe"]["digest"]["sha256"]
    assert json.loads(content)["name"] == "int8"
    assert materials["environment"]["digest"]["sha256"] == file_digest(published / "sbom.cdx.json")


def test_both_are_covered_by_the_checksums(copy: Callable[[], Path]):
    for name in ("provenance.intoto.json", "sbom.cdx.json"):
        folder = copy()
        (folder / name).write_text("{}")
        report = verify(folder)
        assert (report.stage, name in report.problem) == ("files", True)


def test_the_environment_is_listed_with_versions_and_licences(published: Path):
    bom = document(published, "sbom.cdx.json")
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    components = {each["name"]: each for each in bom["components"]}
    assert len(components) == len(bom["components"])
    for name in ("torch", "cryptography", "pebble", "numpy"):
        assert components[name]["version"] == version(name)
        assert components[name]["licenses"]
    references = [each["bom-ref"] for each in bom["components"]]
    assert len(set(references)) == len(references)


def test_the_same_environment_gives_the_same_bytes():
    first, second = (sbom_of("word-lm", "1", installed_packages(), "3.11.7") for _ in range(2))
    assert first == second


def test_an_artifact_that_is_gone_is_no_material(made: Made):
    with pytest.raises(StoreError, match=r"artifact\.json is missing"):
        made.store.manifest_digest("checkpoint", "0" * 64)

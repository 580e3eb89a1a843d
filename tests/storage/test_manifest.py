from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from storage.errors import BundleError
from storage.seal import check_manifest

TENSOR = {"name": "x", "golden": "input.x", "dtype": "float32", "shape": [1, 5], "minimum": -1.0, "maximum": 1.0}
GOOD: dict[str, Any] = {
    "format": 1,
    "workload": {
        "name": "lstm-demo",
        "description": "",
        "domain": "sequence",
        "model": {"kind": "lstm"},
        "data": {"kind": "random"},
        "checkpoint": {"kind": "seeded"},
    },
    "version": "2026-11-21-7c3e3bc8bcab",
    "night": "2026-11-21",
    "run_id": "r1",
    "recipe": {"name": "dynamic", "method": "dynamic", "engine": "x86"},
    "engine": "x86",
    "required_isa": {"architecture": "x86_64", "instructions": ["avx2"], "packaged_on": "A processor"},
    "sources": dict.fromkeys(("checkpoint", "data", "quantized", "outputs"), "0" * 64) | {"calibration": None},
    "model": {
        "file": "model.pt",
        "files": ["model.pt"],
        "runtime": "torchscript",
        "parameters": 100,
        "inputs": [TENSOR],
        "outputs": [TENSOR | {"golden": "output.0", "tolerance": 0.001}],
    },
    "golden": {"file": "golden.safetensors", "tolerance_share": 0.0001, "cases": 10, "chooses": False},
    "resources": {"vocabulary": "vocabulary.txt"},
    "measurements": [{"recipe": "dynamic", "runtime": "eager", "setting": "primary", "status": "ok"}],
    "gate": {"decision": "promote", "objective": "fastest", "reason": "fastest", "rules": []},
    "versions": {"python": "3.11", "torch": "2.10", "nightquant": "0.1.0"},
    "licence": "",
    "not_reproducible": [],
}


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    change(document)
    return document


def several_files(document: dict[str, Any]) -> None:
    document["model"] |= {"file": "model.onnx", "files": ["model.onnx", "model.onnx.data"], "runtime": "onnxruntime"}


def test_a_complete_manifest_is_valid() -> None:
    check_manifest(GOOD)


@pytest.mark.parametrize(
    "change",
    [
        several_files,
        lambda document: document["model"].update(runtime="aot-inductor"),
        lambda document: document.update(engine=None),
        lambda document: document["workload"].update(domain="text-encoder"),
        lambda document: document["recipe"].update(method="pt2e"),
        lambda document: document["resources"].update(tokenizer="tokenizer.json"),
    ],
)
@pytest.mark.slow
def test_runtimes_domains_and_methods_are_open(change: Callable[[dict[str, Any]], object]) -> None:
    check_manifest(changed(change))


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda document: document["model"].pop("file"), r"\$\.model"),
        (lambda document: document["model"].update(files=[]), r"\$\.model\.files"),
        (lambda document: document["model"].update(files=["../model.pt"]), r"\$\.model\.files\[0\]"),
        (lambda document: document["model"].update(runtime="Not a slug"), r"\$\.model\.runtime"),
        (lambda document: document["resources"].update({"../x": "file"}), r"\$\.resources"),
        (lambda document: document.update(format=2), r"\$\.format"),
        (lambda document: document.pop("golden"), "'golden' is a required property"),
    ],
)
@pytest.mark.slow
def test_an_invalid_manifest_is_refused_with_the_place_of_the_error(
    change: Callable[[dict[str, Any]], object], place: str
) -> None:
    with pytest.raises(BundleError, match=f"does not conform to its schema: .*{place}"):
        check_manifest(changed(change))

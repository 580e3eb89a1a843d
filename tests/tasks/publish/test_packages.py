from __future__ import annotations

import ast
import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tasks.publish.package import installed_packages
from tasks.publish.verify import checker_source
from tasks.workload.recipe import RUNTIMES

LICENCES = {
    "expression": ("License-Expression: MIT OR Apache-2.0\nLicense: other\n", "MIT OR Apache-2.0"),
    "classifiers": (
        "License: BSD\nClassifier: License :: OSI Approved :: BSD License\nClassifier: License :: Public Domain\n",
        "BSD License, Public Domain",
    ),
    "text": ("License: Mine alone\n        and nobody else's\n", "Mine alone"),
    "silent": ("", ""),
}


def install(folder: Path, name: str, number: str, metadata: str = "") -> None:
    made = folder / f"{name}-{number}.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {number}\n{metadata}")


@pytest.mark.parametrize(("metadata", "licence"), LICENCES.values(), ids=LICENCES)
def test_a_licence_comes_from_the_packages_own_metadata(metadata: str, licence: str, tmp_path: Path):
    install(tmp_path, "one", "1.0", metadata)
    (package,) = installed_packages([str(tmp_path)])
    assert (package.name, package.version) == ("one", "1.0")
    assert [getattr(each, "value", None) or each.name for each in package.licenses] == ([licence] if licence else [])


def test_names_are_normalized_sorted_and_unique(tmp_path: Path):
    install(tmp_path / "first", "Ruamel.Yaml_clib", "2.0+cpu")
    install(tmp_path / "first", "a", "1.0")
    install(tmp_path / "second", "ruamel-yaml-clib", "1.0")
    (tmp_path / "first/left-1.0.dist-info").mkdir()
    found = installed_packages([str(tmp_path / "first"), str(tmp_path / "second")])
    assert [str(each.purl) for each in found] == ["pkg:pypi/a@1.0", "pkg:pypi/ruamel-yaml-clib@2.0%2Bcpu"]


@pytest.mark.slow
def test_the_environment_is_listed_with_versions_and_licences(published: Path):
    bom = json.loads((published / "sbom.cdx.json").read_text(encoding="ascii"))
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    components = {each["name"]: each for each in bom["components"]}
    assert len(components) == len(bom["components"])
    for name in ("torch", "numpy"):
        assert components[name]["version"] == version(name)
        assert components[name]["licenses"]


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if RUNTIMES[name].hands_over])
def test_a_verification_program_imports_only_the_runtimes_requirements(runtime: str):
    expected = {
        "onnxruntime": {"numpy", "onnxruntime"},
        "openvino": {"numpy", "openvino"},
        "executorch": {"executorch", "torch"},
    }
    nodes = list(ast.walk(ast.parse(checker_source(runtime))))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert packages == expected.get(runtime, {"torch"})

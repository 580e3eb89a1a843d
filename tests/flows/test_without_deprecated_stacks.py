"""A night in which all that upstream has deprecated refuses to work: every other runtime works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.results.query import run_query

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
# Python runs a module of this name at its start, in the command's process and in those that it starts.
REFUSING = '''
import importlib.abc, importlib.util, sys
from types import FunctionType


def refuse(*_, **__):
    raise AssertionError("deprecated")


class Refusing(importlib.abc.MetaPathFinder):
    """Lets torch be imported, and then takes its deprecated entry points away."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            import torch.ao.quantization, torch.ao.quantization.quantize_fx

            for place in (torch.ao.quantization, torch.ao.quantization.quantize_fx):
                for entry, found in list(vars(place).items()):
                    if isinstance(found, FunctionType) and not entry.startswith("_"):
                        setattr(place, entry, refuse)
            for entry in ("trace", "trace_module", "script", "save", "load", "freeze"):
                setattr(torch.jit, entry, refuse)
            for entry in ("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"):
                setattr(torch, entry, refuse)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Refusing())
'''
RUNTIMES = ("onnxruntime", "openvino", "aot-inductor")
WORKLOAD = f"""
schema_version = 1
name = "images"
description = "tiny images"
domain = "image-classification"
model = {{ kind = "factory", factory = "tests.tasks.quantize.networks:plain" }}
checkpoint = {{ kind = "seeded" }}
benchmark = {{ baseline = "float/eager", twins = false }}
gate = {{ objective = "smallest" }}
recipe = [
    {{ name = "float", method = "none" }},
    {{ name = "int8", method = "static", runtimes = {list(RUNTIMES)} }},
]
[data]
kind = "rendered-characters"
characters = "AHTX"
image_size = 16
train = 48
calibration = 16
valid = 16
test = 16
"""


@pytest.mark.long
def test_a_night_measures_int8_in_each_other_runtime_and_hands_a_bundle_over(
    migrated_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "patch").mkdir()
    shutil.copytree(migrated_home, tmp_path / "prefect")
    (tmp_path / "patch" / "sitecustomize.py").write_text(REFUSING, encoding="utf-8")
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path / 'patch'}{os.pathsep}{ROOT}", "PREFECT_HOME": str(tmp_path / "prefect")
    }  # fmt: skip
    environment.pop("PREFECT_API_URL", None)
    refused = subprocess.run(
        [sys.executable, "-c", "import torch; torch.jit.script(torch.nn.Linear(1, 1))"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "AssertionError: deprecated" in refused.stderr
    (tmp_path / "images.toml").write_text(WORKLOAD, encoding="utf-8")
    asked = ("--workload", "images.toml", "--profile", "quick", "--store", "store")
    command = [sys.executable, "-P", "-m", "flows", "nightly", *asked]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    query = "select recipe, runtime, status from measurements where setting = 'primary'"
    rows = {tuple(row.values()) for row in run_query(tmp_path / "store", query).to_pylist()}
    assert rows == {("float", "eager", "ok"), *(("int8", runtime, "ok") for runtime in RUNTIMES)}
    folder = tmp_path / "store" / "handoff" / "images"
    version = json.loads((folder / "current.json").read_text(encoding="utf-8"))["version"]
    manifest = json.loads((folder / version / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["model"]["runtime"] in RUNTIMES

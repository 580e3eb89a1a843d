"""The examples in docs/extending.md, added to a copy of the project, run through a night and verified as bundles."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.long]

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n# (?P<path>[\w/]+\.py)(, in (?P<registry>[A-Z]+))?\n(?P<code>.*?)^```$", re.M | re.S)

HEAD = """
schema_version = 1
name = "{name}"
description = "an extension"
checkpoint = {{ kind = "seeded" }}
# Nothing else may be published: a file in eager mode cannot be, and float twins are not built.
benchmark = {{ baseline = "float/eager", twins = false }}
gate = {{ objective = "smallest" }}
recipe = [{{ name = "float", method = "none", runtimes = ["eager"] }}, {{ name = "saved", {saved} }}]
"""
# For each workload what it needs, its recipe and its other sections.
WORKLOADS = {
    "a-runtime": (
        ["runtime"],
        'method = "none", runtimes = ["state-dict"]',
        'domain = "sequence"\ndata = { kind = "random-sequence" }\nmodel = { kind = "lstm" }\n',
    ),
    "a-method-and-a-domain": (
        ["quantization method", "domain"],
        'method = "rounded", runtimes = ["torchscript"]',
        'domain = "table"\ndata = { kind = "random-table" }\nmodel = { kind = "mlp" }\n',
    ),
}


def extend(copy: Path, what: str) -> None:
    """Write the modules of the section "Add a …", and add its line to the registry; change nothing else."""
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    section = page.split(f"## Add a {what}\n")[1].split("\n## ")[0]
    *modules, line = BLOCK.finditer(section)
    for module in modules:
        target = copy / module["path"]
        target.parent.mkdir(exist_ok=True)
        assert not target.exists()
        target.write_text(module["code"], encoding="utf-8")
    registry = copy / line["path"]
    text = registry.read_text(encoding="utf-8")
    assert line["code"].count("\n") == 1
    entries = re.search(rf"^{line['registry']}: .*?\{{\n", text, re.M | re.S)
    assert entries is not None
    # After the first entry, which is the default.
    end = text.index("\n", entries.end()) + 1
    registry.write_text(text[:end] + line["code"] + text[end:], encoding="utf-8")


def test_each_extension_runs_through_a_night_to_a_verified_bundle(migrated_home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for layer in ("flows", "tasks", "storage"):
        shutil.copytree(ROOT / layer, copy / layer, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(migrated_home, tmp_path / "prefect")
    named = []
    for name, (extensions, saved, sections) in WORKLOADS.items():
        for what in extensions:
            extend(copy, what)
        (tmp_path / f"{name}.toml").write_text(HEAD.format(name=name, saved=saved) + sections, encoding="utf-8")
        named += ["--workload", f"{name}.toml"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PREFECT_HOME": str(tmp_path / "prefect")}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-P", "-m", "flows", "nightly", *named, "--profile", "quick", "--store", "store"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in WORKLOADS:
        folder = tmp_path / "store" / "handoff" / name
        bundle = folder / json.loads((folder / "current.json").read_text(encoding="utf-8"))["version"]
        manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["recipe"]["name"] == "saved"
        verified = subprocess.run(
            [sys.executable, "-I", str(bundle / "verify.py")], capture_output=True, text=True, check=False
        )
        assert verified.returncode == 0, verified.stdout
        assert verified.stdout.startswith("good")

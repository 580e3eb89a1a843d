"""The pages about your own model in a fresh folder: each example from its first command to a verified bundle.

The pages are your-model.md, data-and-metrics.md, text-encoder.md and vision.md.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.pages import ROOT, Document

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.long]

EXAMPLES = {
    "mymodel": "your-model",
    "encoder": "text-encoder",
    "classifier": "vision",
}


def commands(name: str, page: str) -> list[list[str]]:
    """Return the commands that a page has for an example, in order."""
    shell = Document.read(ROOT / "docs" / f"{page}.md").shell
    blocks = [block.text for block in shell if not block.not_run and name in block.text]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line]


def run(name: str, page: str, migrated_home: Path, folder: Path) -> None:
    """Run an example's commands in a folder."""
    shutil.copytree(migrated_home, folder / "prefect")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "NIGHTQUANT_"))}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(ROOT), "DO_NOT_TRACK": "1"}
    (folder / "docs").symlink_to(ROOT / "docs")
    programs = {"nightquant": [sys.executable, "-P", "-m", "flows"], "python": [sys.executable], "cp": ["cp"]}
    for program, *words in commands(name, page):
        done = subprocess.run(
            [*programs[program], *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_on_data_links_the_file_that_its_command_writes(migrated_home: Path, tmp_path: Path) -> None:
    run("gestures", "data-and-metrics", migrated_home, tmp_path)
    example = ROOT / "docs" / "examples" / "gestures.toml"
    assert (tmp_path / "gestures.toml").read_text(encoding="utf-8") == example.read_text(encoding="utf-8")


def test_a_table_is_initialised_and_checked_as_the_page_says(migrated_home: Path, tmp_path: Path) -> None:
    run("power", "data-and-metrics", migrated_home, tmp_path)
    assert 'target = "power"' in (tmp_path / "power.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "page"), EXAMPLES.items())
def test_an_example_runs_as_the_page_says_to_a_verified_bundle(
    migrated_home: Path, tmp_path: Path, name: str, page: str
) -> None:
    run(name, page, migrated_home, tmp_path)
    (pointer,) = tmp_path.glob(f"*/handoff/{name}/current.json")
    bundle = pointer.parent / json.loads(pointer.read_text(encoding="utf-8"))["version"]
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    # The fastest is promoted, so the machine decides whether int8 pays.
    assert re.fullmatch(r"float|(static|dynamic)-int8", manifest["recipe"]["name"])
    assert str(tmp_path) not in json.dumps(manifest["workload"]["model"])
    verified = subprocess.run(
        [sys.executable, "-I", str(bundle / "verify.py")], capture_output=True, text=True, check=False
    )
    assert verified.returncode == 0, verified.stdout
    # What the card says is a program that runs beside the files.
    card = (bundle / "MODEL_CARD.md").read_text(encoding="utf-8")
    (usage,) = re.findall(r"^```python\n(.*?)^```$", card, re.M | re.S)
    if (bundle / "tokenizer.json").is_file():
        program = f"{usage}\nprint(outputs.shape if hasattr(outputs, 'shape') else outputs[0].shape)"
        done = subprocess.run([sys.executable, "-c", program], cwd=bundle, capture_output=True, text=True, check=False)
        assert re.fullmatch(r"(torch\.Size\(\[|\()1, 3\]?\)\n", done.stdout), done.stdout + done.stderr
    assert (bundle / "tokenizer.json").is_file() is (name == "encoder")

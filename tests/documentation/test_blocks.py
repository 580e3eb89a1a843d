"""Every command on a page runs as it stands there, from top to bottom; why one does not stands in the page's source."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.bundles import BundleStore
from tests.documentation.pages import MARKDOWN, ROOT, Block, Document
from tests.flows.commands.filled_store import write
from tests.storage.bundle_files import promote
from tests.tasks.publish.conftest import make

pytestmark = pytest.mark.slow

# By a test of their own, which says so, and history, which may name commands that are gone.
ELSEWHERE = (
    *("schedule.md", "monitoring.md", "cookbook.md", "CHANGELOG.md"),
    *("your-model.md", "data-and-metrics.md", "text-encoder.md", "vision.md"),
)


def run_here(page: Path) -> list[Block]:
    return [block for block in Document.read(page).shell if not block.not_run]


PAGES = [page for page in MARKDOWN if page.name not in ELSEWHERE and run_here(page)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two nights and two bundles of ``word-lm``, not to be changed."""
    store = tmp_path_factory.mktemp("filled") / "nightquant-store"
    for night in (0, 1):
        write(store, night)
    bundles = BundleStore(store)
    for seed in (1, 2):
        packaged = make(store, seed=seed, name="word-lm").package(bundles)
        promote(bundles, packaged.version, by="a test", reason="fastest of 1")
    return store


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    """A folder with a copy of the store and a virtual environment that does nothing."""
    shutil.copytree(filled, tmp_path / filled.name)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    return tmp_path


# What these pages promise, other tests check on smaller stores.
LONG = ("bundles.md", "proof.md")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.long] if page.name in LONG else []) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_the_commands_of_a_page_run(page: Path, folder: Path) -> None:
    versions = sorted(path.name for path in (folder / "nightquant-store" / "handoff" / "word-lm").iterdir())
    script = "set -eu\n" + "\n".join(block.text for block in run_here(page)).replace("VERSION", versions[0])
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "NIGHTQUANT_"))}
    done = subprocess.run(
        ["bash", "-c", f'nightquant() {{ {shlex.join([sys.executable, "-P", "-m", "flows"])} "$@"; }}\n{script}'],
        cwd=folder,
        env=environment
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "DO_NOT_TRACK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_no_page_is_left_out() -> None:
    assert {page.name for page in PAGES} > {"README.md", "quickstart.md", "bundles.md", "results.md"}

"""Order of the whole suite, and what keeps tests from being blamed for others."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from storage.locks import file_lock

# How long one example takes on a machine that is shared says nothing of the code. Each run draws other examples.
settings.register_profile("shared machine", deadline=None, max_examples=50)
settings.load_profile("shared machine")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest modules, so that no worker ends with one while the others idle; otherwise at random."""
    first = {item.path: 0 for item in items}
    for item in items:
        marked = item.get_closest_marker
        first[item.path] = max(first[item.path], 2 if marked("long") else 1 if marked("slow") else 0)
    items.sort(key=lambda item: -first[item.path])


def pytest_collection_finish() -> None:
    """Let later collections of garbage skip what was imported: visiting it takes half a second of a processor."""
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let the interpreter end as usual: libraries report what is not collected as leaked."""
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def garbage_of_its_own() -> Iterator[None]:
    """Collect what a module leaves: an error in a finalizer fails the test that runs meanwhile, whoever made it."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def no_chosen_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the cache folder that an earlier test's command or flow chose for its process: it holds the locks."""
    monkeypatch.setattr("storage.root._chosen_cache", "")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def migrated_home(shared_folder: Path) -> Path:
    """Prefect's home with its database made, to be copied: making it is half of a fresh server's start."""
    home = shared_folder / "migrated"
    code = "from flows.execution.server import prefect_api\nwith prefect_api(): pass"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with file_lock(shared_folder / "migrated.lock"):
        if not home.is_dir():
            making = shared_folder / "migrating"
            subprocess.run([sys.executable, "-c", code], env=inherited | {"PREFECT_HOME": str(making)}, check=True)
            making.rename(home)
    return home


@pytest.fixture(scope="session")
def compiled_operators(shared_folder: Path) -> Path:
    """A store that has the int8 operators, to be copied: compiling them takes half a minute of a processor."""
    from storage.artifacts import ArtifactStore
    from tasks.quantize.operators import find_or_compile
    from tasks.values.job import Workspace

    find_or_compile(Workspace(ArtifactStore(shared_folder / "operators")))
    return shared_folder / "operators"

"""Order of the whole suite, and what keeps tests from being blamed for others."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long one example takes on a machine that is shared says nothing of the code.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow modules, in their random order, so that no worker ends with one while the other idles."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module", autouse=True)
def garbage_of_its_own() -> Iterator[None]:
    """Collect what a module leaves: an error in a finalizer fails the test that runs meanwhile, whoever made it."""
    yield
    gc.collect()

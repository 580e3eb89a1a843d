from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.environment import sources
from tasks.environment.user_code import call_factory
from tasks.workload.base import FactorySpec

NETWORK = """
    import torch

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return {factor} * x

    def network():
        return torch.nn.Sequential(torch.nn.Linear(4, 2), {parts})
"""
STEPS = '''
from __future__ import annotations
Registry = dict
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import json
KNOWN: Registry = Registry({"one": 1})
def step():
    """Step."""
    return 1
'''


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write the user's module, import it again, and return the digest of what its factory builds."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def digest(factor: str = "2", parts: str = "Scaled()") -> str:
        (tmp_path / "own_network.py").write_text(textwrap.dedent(NETWORK.format(factor=factor, parts=parts)))
        sys.modules.pop("own_network", None)
        importlib.invalidate_caches()
        spec = FactorySpec(kind="factory", factory="own_network:network")
        return sources.model_digest(call_factory(spec), spec)

    yield digest
    sys.modules.pop("own_network", None)


@pytest.mark.slow
def test_a_models_digest_covers_its_parts_and_its_factory(own_module: Callable[..., str]) -> None:
    first = own_module()
    assert own_module(factor="3") != first == own_module()
    assert own_module(parts="torch.nn.ReLU()") != own_module(parts="torch.nn.Tanh()")


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("return 1", "return 2", True),
        ('"""Step."""', '"""Take a step."""  # edited', False),
        ("import json", "import ast", False),
        ('{"one": 1}', '{"two": 2}', False),
    ],
)
def test_an_imported_modules_code_changes_the_digest_but_docstrings_type_imports_and_registries_do_not(
    tmp_path: Path, old: str, new: str, differs: bool
) -> None:
    (tmp_path / "own_trainer.py").write_text("import json, torch\ndef train():\n    from own_steps import step\n")
    digests = []
    for text in (STEPS, STEPS.replace(old, new)):
        (tmp_path / "own_steps.py").write_text(text)
        digests.append(sources.user_digest(str(tmp_path), "own_trainer:train"))
    assert (digests[0] != digests[1]) == differs


def test_a_digest_of_our_own_code_follows_imports() -> None:
    followed: dict[str, str] = {}
    sources._follow("tasks.data.torchvision_data", followed)
    assert {"tasks.data.pictures", "tasks.data.samples", "tasks.values.refs"} <= followed.keys()
    assert not {"torch", "tasks.domains.sequence.domain"} & followed.keys()

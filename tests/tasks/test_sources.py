import importlib
import sys
import textwrap

import pytest
from torch import nn

from storage.digest import source_digest
from tasks.domains.factory import call_factory
from tasks.domains.image_classification.sections import FactorySpec
from tasks.sources import model_sources

NETWORK = """
    import torch

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return {factor} * x

    def network():
        return torch.nn.Sequential(torch.nn.Linear(4, 2), {parts})
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Write the user's module, import it anew, and give the digest of what its factory builds."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = iter(f"own_network_{number}" for number in range(9))

    def digest(factor="2", parts="Scaled()"):
        name = next(names)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(NETWORK.format(factor=factor, parts=parts)))
        importlib.invalidate_caches()
        spec = FactorySpec(kind="factory", factory=f"{name}:network")
        return source_digest(*model_sources(call_factory(spec), spec))

    yield digest
    for name in [name for name in sys.modules if name.startswith("own_network_")]:
        del sys.modules[name]


def test_an_equal_network_has_an_equal_digest(own_module):
    assert own_module() == own_module()


def test_a_factory_that_puts_other_parts_together_is_noticed(own_module):
    assert own_module(parts="torch.nn.ReLU()") != own_module(parts="torch.nn.Tanh()")


def test_a_part_that_computes_something_else_is_noticed(own_module):
    assert own_module(factor="2") != own_module(factor="3")


def test_torchs_own_modules_are_left_out_and_the_builder_is_not():
    spec = FactorySpec(kind="factory", factory="torch.nn:ReLU")
    assert [module.__name__ for module in model_sources(nn.ReLU(), spec)] == [
        "tasks.domains.image_classification.model"
    ]

import sys
import textwrap

import pytest
from torch import nn

from storage.errors import ConfigurationError
from tasks.data.weights import build_blank
from tasks.environment.user_code import call_factory
from tasks.workload.base import FactorySpec


def spec(factory: str, **arguments) -> FactorySpec:
    return FactorySpec(kind="factory", factory=factory, arguments=arguments)


@pytest.fixture
def own_module(tmp_path, monkeypatch, request):
    """Write a module into the current folder, which is not on the path; give its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    name = f"own_{abs(hash(request.node.nodeid))}"

    def write(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    yield write
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nowhere.models:network", "importing nowhere.models failed: ModuleNotFoundError.*Searched folders: /"),
        ("math:squrt", r'math does not define squrt \(did you mean "sqrt"\?\)\. Correct the name\.'),
        ("math:pi", "TypeError: 'float' object is not callable"),
    ],
)
def test_a_reference_that_cannot_be_called_is_refused(factory, message):
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        call_factory(spec(factory))


def test_a_module_that_cannot_be_imported_says_why(own_module):
    with pytest.raises(ConfigurationError, match=r"importing own_.*ZeroDivisionError"):
        call_factory(spec(f"{own_module('1 / 0')}:network"))


def test_a_result_that_is_not_a_module_is_refused():
    with pytest.raises(ConfigurationError, match=r"returned an object of type list, not a torch\.nn\.Module"):
        call_factory(spec("builtins:list"))


def read_from(folder, factory="own_network:network"):
    """A section as it is read from a workload file in that folder."""
    document = {"kind": "factory", "factory": factory}
    return FactorySpec.model_validate(document, context={"folder": str(folder)})


def test_the_workload_files_folder_comes_before_the_current_one(tmp_path, own_module):
    name = own_module("import torch\ndef network(): return torch.nn.Identity()")
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / f"{name}.py").write_text("import torch\ndef network(): return torch.nn.ReLU()")

    assert type(call_factory(read_from(beside, f"{name}:network"))) is nn.ReLU


def test_modules_of_one_name_in_two_workloads_folders_are_distinguished(tmp_path):
    found = []
    for part in ("ReLU", "Tanh", "ReLU"):
        folder = tmp_path / part
        folder.mkdir(exist_ok=True)
        (folder / "own_network.py").write_text("from own_parts import part\ndef network(): return part()")
        (folder / "own_parts.py").write_text(f"from torch.nn import {part} as part")
        found.append(type(call_factory(read_from(folder))).__name__)

    assert found == ["ReLU", "Tanh", "ReLU"]


def test_an_error_shows_the_users_lines_and_none_of_ours(tmp_path):
    code = "import torch\ndef network():\n    return make()\ndef make():\n    return torch.zeros(2) @ torch.zeros(3)\n"
    (tmp_path / "own_failing.py").write_text(code)

    with pytest.raises(ConfigurationError) as caught:
        call_factory(read_from(tmp_path, "own_failing:network"))

    shown = str(caught.value)
    assert "RuntimeError: " in shown
    assert [f"line {line}, in {name}" in shown for line, name in ((3, "network"), (5, "make"))] == [True, True]
    assert "user_code" not in shown
    assert "site-packages" not in shown


def test_tensors_that_a_module_makes_when_imported_are_kept_though_a_blank_model_imports_it(own_module):
    name = own_module("""
        import torch
        MEAN = torch.full((3,), 0.5)
        def network():
            return torch.nn.Linear(3, 2)
    """)

    assert build_blank(lambda: call_factory(spec(f"{name}:network"))).weight.is_meta
    assert sys.modules[name].MEAN.tolist() == [0.5, 0.5, 0.5]

"""Checkpoints as people publish them: what is loaded of each, with which note, or which message refuses it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.data.weights import load_state
from tasks.domains import checkpoint
from tasks.values.job import Workspace
from tasks.values.refs import CheckpointRef, DatasetRef
from tasks.workload import Workload
from tests.tasks.vision_workloads import image_workload

DATASET = DatasetRef(kind="images", digest="0" * 64, splits={"test": 3}, classes=3, sample_shape=(3, 4, 4))


class Network(nn.Module):
    """A convolution with its batch norm, and two layers that may share their weight."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4)
        self.hidden, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        if tied:
            self.head.weight = self.hidden.weight


class Removal:
    """Unpickled in the usual way, this removes a folder."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.rmdir, ("/nowhere",)


NETWORK, TIED = Network(), Network(tied=True)
STATE = NETWORK.state_dict()
OTHERS = {key: tensor + 1 for key, tensor in STATE.items()}
WITHOUT_COUNTS = {key: tensor for key, tensor in STATE.items() if "num_batches" not in key}


@dataclass(frozen=True)
class Case:
    """How a checkpoint is written into a folder, and what comes of it: notes, or one line that refuses it."""

    write: Callable[[Path], object]
    notes: tuple[str, ...] = ()
    refused: str = ""
    uri: str = "w.pth"
    precision: torch.dtype = torch.float32
    network: nn.Module = field(default=NETWORK)


def saved(content: object) -> Callable[[Path], object]:
    return lambda folder: torch.save(content, folder / "w.pth")


def saved_on_cuda(content: object) -> Callable[[Path], object]:
    """What an old torch writes on a host with a GPU, which names the device beside each storage."""

    def write(folder: Path) -> None:
        with patch("torch.serialization.location_tag", return_value="cuda:0"):
            torch.save(content, folder / "w.pth", _use_new_zipfile_serialization=False)
        assert b"cuda:0" in (folder / "w.pth").read_bytes()

    return write


def below(prefix: str, state: Mapping[str, Tensor] = STATE) -> dict[str, Tensor]:
    return {prefix + key: tensor for key, tensor in state.items()}


def took(level: str, *others: str) -> str:
    named = "".join(f' and not "{other}"' for other in others)
    return f'used the weights under "{level}"{named}'


def prefixed(prefix: str) -> str:
    return f'removed the prefix "{prefix}" from every key'


def code(what: str) -> str:
    return rf"w\.pth was refused, because loading the file could run code{what}\. Save only "


CASES = {
    # formats
    "safetensors": Case(lambda folder: save_file(STATE, folder / "w.pth")),
    "bare state dict": Case(saved(STATE)),
    "Hugging Face directory": Case(lambda folder: save_file(STATE, folder / "model.safetensors"), uri="."),
    "TorchScript": Case(
        lambda folder: torch.jit.script(nn.Linear(2, 2)).save(folder / "w.pth"),
        refused="as a state dict: ",
    ),
    # levels
    "state_dict": Case(saved({"state_dict": STATE, "epoch": 3}), (took("state_dict"),)),
    "model_ema beside model": Case(
        saved({"model": OTHERS, "model_ema": AveragedModel(NETWORK).state_dict()}),
        (took("model_ema", "model"), prefixed("module.")),
    ),
    # prefixes
    "DataParallel": Case(saved(nn.DataParallel(NETWORK).state_dict()), (prefixed("module."),)),
    "LightningModule of torch.compile": Case(saved(below("model._orig_mod.")), (prefixed("model._orig_mod."),)),
    # values
    "half": Case(
        saved({key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in STATE.items()}),
        ("converted float16 values to float32",),
        precision=torch.float16,
    ),
    "old, DataParallel, CUDA": Case(
        saved_on_cuda({"state_dict": below("module.", WITHOUT_COUNTS), "best_prec1": 91.7}),
        (took("state_dict"), prefixed("module.")),
    ),
    "a compiled part": Case(
        saved({key.replace(".", "._orig_mod.", 1): tensor for key, tensor in STATE.items()}),
        ("removed the names of compiled or wrapped parts from keys",),
    ),
    "tied, safetensors": Case(
        lambda folder: save_model(TIED, str(folder / "w.pth")),
        ("took hidden.weight from head.weight, because the model ties them",),
        network=TIED,
    ),
    # objects
    "Lightning, with a script's arguments": Case(
        saved({"state_dict": below("model."), "epoch": 3, "hyper_parameters": {"args": Namespace(lr=0.1)}}),
        (took("state_dict"), prefixed("model.")),
    ),
    "pickled module": Case(saved(NETWORK), refused=code(f" of {__name__}.Network")),
    "blocked function": Case(saved({"model": STATE, "x": Removal()}), refused=code(".*")),
    "another model": Case(saved(nn.Linear(2, 2).state_dict()), refused=r'Unexpected key.*"weight", "bias"'),
    "another shape": Case(
        saved(STATE | {"head.weight": torch.zeros(3, 4)}),
        refused=r"size mismatch for head\.weight: copying a param with shape torch\.Size\(\[3, 4\]\)",
    ),
}


def obtain(workload: Workload, dataset: DatasetRef, store: ArtifactStore) -> CheckpointRef:
    return checkpoint.obtain(workload, dataset, Workspace(store))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("name", CASES)
def test_a_published_checkpoint_is_loaded_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    case, store = CASES[name], ArtifactStore(tmp_path / "store")
    (tmp_path / "published").mkdir()
    case.write(tmp_path / "published")
    tied = case.network is TIED
    workload = image_workload(
        model={"kind": "factory", "factory": f"{__name__}:Network", "arguments": {"tied": tied}},
        checkpoint={"kind": "uri", "uri": str(tmp_path / "published" / case.uri)},
    )
    if case.refused:
        with pytest.raises(NightquantError, match=case.refused):
            obtain(workload, DATASET, store)
        return
    kept = obtain(workload, DATASET, store)
    assert kept.notes == case.notes
    found = load_state(kept, store)
    expected = case.network.state_dict()
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        rounded = tensor.to(case.precision).float() if tensor.is_floating_point() else tensor
        assert torch.equal(found[key], rounded), key
    # PyTorch itself takes what is loaded.
    Network(tied).load_state_dict(found)

"""What `benchmarks.search` searches: models and their workload files, and candidates built in one process."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.data.outputs import outputs_of
from tasks.data.weights import load_checkpoint
from tasks.run.stages import build, evaluate, obtain, prepare
from tasks.runtimes.build import model_source
from tasks.search.trial import Selection
from tasks.values.job import Job, Workspace
from tasks.values.refs import CandidateRef
from tasks.values.results import Evaluation
from tasks.workload import Workload, read_workload
from tasks.workload.recipe import Recipe

BUILT_IN = Path(__file__).parents[2] / "flows" / "workloads"
OUTLIER, OUTLIERS, PLANTED_AFTER = 300.0, 4, (2, 4)  # factor, channels, and the blocks whose outputs have outliers
MODELS = ("word-lm", "resnet18", "python-text", "mobilenet", "planted")


def planted(classes: int) -> nn.Module:
    """Build a chain of convolutions, batch norms and ReLUs, in which `plant` finds its channels."""
    blocks = [
        nn.Sequential(nn.Conv2d(before, after, 3, 1 + number % 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        for number, (before, after) in enumerate(pairwise((3, 32, 48, 64, 64, 96, 96)))
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes))


def mobilenet(classes: int) -> nn.Module:
    """Build MobileNetV3-small for small pictures and a short training: its first stride is 1, its norms adapt fast."""
    from torchvision.models import mobilenet_v3_small

    model = mobilenet_v3_small(num_classes=classes, norm_layer=nn.BatchNorm2d)
    model.features[0][0].stride = (1, 1)
    return model


def plant(model: nn.Module) -> None:
    """Multiply a few channels after some ReLUs by `OUTLIER`, and divide the next convolution's weights by it."""
    blocks: list[Any] = list(model.children())
    for number in PLANTED_AFTER:
        (_, norm, _), (following, *_) = blocks[number], blocks[number + 1]
        norm.weight.data[:OUTLIERS] *= OUTLIER
        norm.bias.data[:OUTLIERS] *= OUTLIER
        following.weight.data[:, :OUTLIERS] /= OUTLIER


def write_workload(name: str, data: Path | None, folder: Path, store: Path) -> Path:
    """Write a model's workload file; train the network with planted outliers.

    Other models than the built-in ones differ from the built-in ResNet-18 in the network and the pictures.
    """
    pictures = data / "cifar10-small.tar" if data and name == "mobilenet" else None
    is_built_in = (BUILT_IN / f"{name}.toml").exists()
    text = (BUILT_IN / f"{name if is_built_in else 'resnet18'}.toml").read_text(encoding="utf-8")
    changes = {
        # The selection split is as large as the test split, so that its intervals are narrow enough for the bound.
        r"valid = \d+": f"valid = {2000 if name == 'python-text' else 2048}",
        r"test = 2048": "test = 4096",
    }
    if not is_built_in:
        changes |= {
            'name = "resnet18"\ndesc.*': f'name = "{name}"\ndescription = "{name}"',
            r'kind = "torchvision"\nname.*': 'kind = "factory"\nfactory = "benchmarks.search.subjects:'
            f'{name}"\narguments = {{ classes = {10 if pictures else 12} }}',
            r"epochs = .*": f"epochs = {5 if pictures else 3}",
            r"max_quality_drop = .*": "max_quality_drop = 1.0",
            r"min_size_ratio = .*\n": "",
        }
    if pictures:
        place = f'uri = "{pictures.resolve()}"'
        changes[r'kind = "rendered(.*\n)+?\n'] = (
            f'kind = "image-folder"\n{place}\nimage_size = 32\nvalid_share = 0.2\n\n'
        )
    for pattern, replacement in changes.items():
        text = re.sub(f"(?m)^{pattern}", replacement, text)
    path = folder / f"{name}.toml"
    path.write_text(f"{text}\n[search]\n", encoding="utf-8")
    if name == "planted":
        job, workspace = obtained(path, store)
        model, examples = planted(12).eval(), model_source(job, workspace).example_inputs
        load_checkpoint(model, job.checkpoint, workspace.store)
        before = outputs_of(model, examples)[0]
        plant(model)
        torch.testing.assert_close(outputs_of(model, examples)[0], before, rtol=1e-3, atol=1e-3)
        torch.save(model.state_dict(), folder / "planted.pth")
        uri = '[checkpoint]\nkind = "uri"\nuri = "planted.pth"\n\n'
        path.write_text(re.sub(r"\[checkpoint\](.*\n)+?\n", uri, path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def obtained(workload: Path, store: Path) -> tuple[Job[Workload], Workspace]:
    """Return a workload's data and float weights, prepared or found in the store."""
    workspace, parsed = Workspace(ArtifactStore(store)), read_workload(workload)
    return obtain(workspace, parsed, prepare(workspace, parsed)), workspace


def built_and_evaluated(
    workload: Path, store: Path, pair: tuple[Recipe, str]
) -> tuple[CandidateRef | None, Evaluation | None]:
    """Build and evaluate one candidate in this process; return None twice if it cannot work."""
    torch.set_num_threads(1)
    job, workspace = obtained(workload, store)
    selection = Selection.of(job.dataset)
    try:
        candidate = build(workspace, job, *pair)
        return candidate, evaluate(workspace, selection.job(job, selection.samples[-1]), candidate)
    except NightquantError:
        return None, None

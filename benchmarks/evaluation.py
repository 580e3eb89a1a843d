"""Print a table for docs/measured-method.md: how much of an evaluation the model takes, by candidate of ResNet-18.

    python -m benchmarks.evaluation [--pictures 200 --size 32]

Pictures are rendered and weights are random, because neither changes what a call costs. Times are processor seconds of
one thread. The model's time is that of its calls, compiling for a shape included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from unittest.mock import patch

import torch
from torch import Tensor

import tasks.evaluate
from storage.artifacts import ArtifactStore
from tasks.build import open_candidate
from tasks.job import Job, Workspace
from tasks.machine import this_machine
from tasks.refs import CandidateRef
from tasks.results import Evaluation
from tasks.runtimes.base import Opened
from tasks.stages import build, evaluate, obtain, prepare
from tasks.workload import Workload

RUNTIMES = ["torchscript", "onnxruntime", "openvino"]
RECIPES = [
    {"name": "float", "method": "none", "runtimes": RUNTIMES},
    {"name": "dynamic-int8", "method": "dynamic", "modules": ["Linear"], "runtimes": RUNTIMES},
    {"name": "static-int8", "method": "static", "calibration_batches": 1, "runtimes": RUNTIMES},
]


def main() -> None:
    """Print one line per candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=1000, help="in the test split (default: %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of a picture in pixels (default: %(default)s)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"{this_machine().cpu}; torch {torch.__version__}\n")
    print("| candidate | mode | total seconds | seconds in calls | fraction |\n|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(ArtifactStore(folder))
        workload = resnet18(arguments.pictures, arguments.size)
        job = obtain(workspace, workload, prepare(workspace, workload))
        for recipe in workload.recipe:
            for runtime in recipe.runtimes:
                candidate = build(workspace, job, recipe, runtime)
                evaluation, whole_s, model_s = measured(workspace, job, candidate)
                share = f"{model_s / whole_s:.0%}"
                print(f"| {candidate.name} | {evaluation.mode} | {whole_s:.1f} | {model_s:.1f} | {share} |", flush=True)


def resnet18(pictures: int, size: int) -> Workload:
    """Describe ResNet-18 with random weights on rendered pictures."""
    data = {"kind": "rendered-characters", "image_size": size, "train": 24, "calibration": 32, "valid": 12}
    return Workload.model_validate(
        {
            "schema_version": 1,
            "name": "evaluation",
            "description": "what an evaluation costs",
            "domain": "image-classification",
            "data": data | {"test": pictures},
            "model": {"kind": "torchvision", "name": "resnet18"},
            "checkpoint": {"kind": "seeded"},
            "recipe": RECIPES,
            "benchmark": {"baseline": "float/torchscript"},
        }
    )


def measured(workspace: Workspace, job: Job[Workload], candidate: CandidateRef) -> tuple[Evaluation, float, float]:
    """Evaluate a candidate; also return the processor seconds of it, and how many of them its calls took."""
    model_s = 0.0

    def opened(candidate: CandidateRef, workspace: Workspace, threads: int) -> Opened:
        model = open_candidate(candidate, workspace, threads)

        def call(*inputs: Tensor) -> object:
            nonlocal model_s
            began = time.process_time()
            outputs = model.call(*inputs)
            model_s += time.process_time() - began
            return outputs

        return Opened(call, model.scope)

    began = time.process_time()
    with patch.object(tasks.evaluate, "open_candidate", opened):
        evaluation = evaluate(workspace, job, candidate)
    return evaluation, time.process_time() - began, model_s


if __name__ == "__main__":
    main()

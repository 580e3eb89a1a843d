"""The method `dynamic-per-row` beside ONNX Runtime's and OpenVINO's int8, on the linear layers of a text encoder.

Run it where nothing else runs::

    python -m benchmarks.encoders --rounds 12

The encoder is a BERT with the shape of MiniLM-L6 (width 384, 6 layers) and random weights. A call gets one text of 8,
32 or 128 tokens and runs on one thread. Rounds, blocks and intervals are those of `benchmarks.runtimes`.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.int8_lstm import sets_here
from benchmarks.runtimes import EAGER, Subject, job_of, print_column
from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.build import open_candidate
from tasks.job import Workspace
from tasks.outputs import intra_op_threads
from tasks.stages import build
from tasks.workload import find_workloads

LENGTHS = (8, 32, 128)
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
RECIPES: list[dict[str, Any]] = [
    {"name": "float", "method": "none", "runtimes": ["eager", "onnxruntime", "openvino"]},
    {"name": "dynamic-int8", "method": "dynamic", "runtimes": ["torchscript", "onnxruntime", "openvino"]},
    {"name": "static-int8", "method": "static", "runtimes": ["onnxruntime", "openvino"]},
    {"name": "int8-per-row", "method": "dynamic-per-row", "runtimes": ["eager", "aot-inductor"]},
]


def main() -> None:
    """Build every candidate, and print a table for each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="timed blocks of each candidate (default: %(default)s)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, intra_op_threads(1), torch.inference_mode():
        calls = built(Workspace(ArtifactStore(Path(folder) / "store")))
        print(f"Instruction sets: {', '.join(sets_here())}\n")
        for length in LENGTHS:
            ids = torch.randint(5, 1000, (1, length), generator=torch.Generator().manual_seed(length))
            inputs = ids, torch.ones_like(ids)
            subjects = {name: Subject(partial(call, *inputs), scope) for name, (call, scope) in calls.items()}
            print_column(f"MiniLM shape, {length} tokens", subjects, arguments.rounds)


def built(workspace: Workspace) -> dict[str, tuple[Any, Any]]:
    """Return the call and the scope of every candidate that can be built here, by name."""
    (built_in,) = find_workloads(["python-text"], Path(__file__).parents[1] / "flows" / "workloads")
    document = built_in.model_dump(mode="json") | {"checkpoint": {"kind": "seeded"}, "recipe": RECIPES}
    document["model"]["config"] |= SHAPE
    document["data"] |= {"train": 200, "valid": 20, "test": 200, "calibration": 20}
    document["benchmark"]["baseline"] = "float/eager"
    job = job_of(document, workspace)
    calls = {}
    for recipe in job.workload.recipe:
        for runtime in recipe.runtimes:
            name = f"{recipe.name}/{runtime}"
            try:
                with torch.inference_mode(mode=False):
                    opened = open_candidate(build(workspace, job, recipe, runtime), workspace, 1)
            except NightquantError as error:
                print(f"- {name} is left out: {error}\n")
                continue
            calls[EAGER if name == document["benchmark"]["baseline"] else name] = opened.call, opened.scope
    return calls


if __name__ == "__main__":
    main()

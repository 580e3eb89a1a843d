"""Which attention a text encoder should have: eager products or scaled_dot_product_attention, on each runtime.

``python -m benchmarks.attention`` builds the float model of the built-in workload ``python-text`` both ways with seeded
weights and times them in turn, on one thread, at 128 tokens; medians of calls. Nothing is trained.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch

from storage.artifacts import ArtifactStore
from tasks import stages
from tasks.build import open_candidate
from tasks.extensions import DOMAINS
from tasks.job import Workspace
from tasks.runtimes.base import Opened
from tasks.workload import Workload, find_workloads

RUNTIMES = ("eager", "torchscript", "onnxruntime", "openvino", "aot-inductor")
KINDS = ("eager", "sdpa")
CALLS = 200


def main() -> None:
    """Print a table of medians."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(ArtifactStore(folder))
        print("| runtime | batch | eager ms | sdpa ms |\n|---|---:|---:|---:|")
        for runtime in RUNTIMES:
            opened = {kind: made(kind, runtime, workspace) for kind in KINDS}
            for batch in (1, 8):
                found = timed(opened, batch, workspace)
                print(f"| {runtime} | {batch} | {found['eager']:.2f} | {found['sdpa']:.2f} |", flush=True)


def workload_of(kind: str) -> Workload:
    """The built-in workload with that attention and seeded weights."""
    (built_in,) = find_workloads(["python-text"], Path(__file__).parents[1] / "flows" / "workloads")
    document = built_in.model_dump(mode="json") | {"checkpoint": {"kind": "seeded"}}
    document["model"]["config"]["attn_implementation"] = kind
    document["data"] |= {"train": 200, "valid": 20, "test": 200, "calibration": 20}
    document["recipe"] = [{"name": "float", "method": "none", "runtimes": list(RUNTIMES)}]
    document["benchmark"]["baseline"] = "float/eager"
    return Workload.model_validate(document)


def made(kind: str, runtime: str, workspace: Workspace) -> Opened:
    """The float candidate for a runtime, opened."""
    workload = workload_of(kind)
    job = stages.obtain(workspace, workload, stages.prepare(workspace, workload))
    candidate = stages.build(workspace, job, workload.recipe_named("float"), runtime)
    return open_candidate(candidate, workspace, 1)


def timed(opened: dict[str, Opened], batch: int, workspace: Workspace) -> dict[str, float]:
    """Median milliseconds of a call of each, called in turn."""
    workload = workload_of("sdpa")
    dataset = stages.prepare(workspace, workload)
    inputs = DOMAINS[workload.domain].example_inputs(workload, dataset, workspace.store, batch).values()
    found: dict[str, list[float]] = {kind: [] for kind in opened}
    with torch.inference_mode():
        for _ in range(CALLS):
            for kind, model in opened.items():
                began = time.perf_counter()
                model(*inputs)
                found[kind].append(time.perf_counter() - began)
    return {kind: 1e3 * statistics.median(seconds) for kind, seconds in found.items()}


if __name__ == "__main__":
    main()

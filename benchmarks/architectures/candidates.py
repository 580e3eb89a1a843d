"""Build the candidates of one workload file and compare each with the float model; one JSON line a candidate.

`benchmarks.architectures` starts it as a process of its own.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import tempfile
from pathlib import Path

import torch

from storage.artifacts import ArtifactStore
from storage.errors import NightquantError
from tasks.data.outputs import distance, outputs_of, tensors_of, worst
from tasks.environment.libraries import LibraryError
from tasks.run import stages
from tasks.runtimes.build import model_source, open_candidate
from tasks.values.job import Job, Workspace
from tasks.workload import Workload, read_workload

OWN = sys.stdout


def main() -> None:
    """Read a workload file and the candidates asked for from the command line."""
    path, memory, *asked = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    sys.stdout = sys.stderr  # libraries print
    torch.set_num_threads(1)
    workload = read_workload(Path(path))
    with tempfile.TemporaryDirectory(prefix="nightquant-") as store:
        workspace = Workspace(ArtifactStore(store))
        pairs = [tuple(name.split("/")) for name in asked]
        try:
            job = stages.obtain(workspace, workload, stages.prepare(workspace, workload))
        except NightquantError as error:
            for method, runtime in pairs:
                _say(method, runtime, _became(error), str(error))
            return
        for method, runtime in pairs:
            _try(job, workspace, method, runtime)


def _try(job: Job[Workload], workspace: Workspace, method: str, runtime: str) -> None:
    try:
        candidate = stages.build(workspace, job, job.workload.recipe_named(method), runtime)
        source = model_source(job, workspace)
        expected = outputs_of(source.float_model(), source.example_inputs)
        with torch.inference_mode():
            actual = tensors_of(open_candidate(candidate, workspace, 1)(*source.example_inputs.values()))
    except NightquantError as error:
        _say(method, runtime, _became(error), str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of this candidate
        _say(method, runtime, "crashed", f"{type(error).__name__}: {error}")
    else:
        off = worst(*map(distance, actual, expected))
        _say(method, runtime, "works" if candidate.covered_share else "-", "", off if candidate.covered_share else None)


def _became(error: NightquantError) -> str:
    """Return "crashed" for an error that nobody foresaw, unless the limit of memory is the cause."""
    if re.search(r"can't alloc|AllocateRaw|MemoryError|Cannot allocate memory", f"{error} {error.__cause__!r}"):
        return "too large"
    return "crashed" if isinstance(error, LibraryError) else "refused"


def _say(method: str, runtime: str, became: str, message: str, off: float | None = None) -> None:
    document = {"method": method, "runtime": runtime, "became": became, "message": message[:300], "distance": off}
    print(json.dumps(document), file=OWN, flush=True)


if __name__ == "__main__":
    main()

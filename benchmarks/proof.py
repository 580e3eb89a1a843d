"""Tables of docs/measured.md: shares of int8 in the time of the built-in workloads and the tutorial's model.

Run it anywhere; shares of time move little with the machine's load::

    python -m benchmarks.proof

By the runtime's own profiler: the share of all operators' time in int8, and of those that compute alone, leaving out
conversions and what only moves numbers. By an independent measure, which knows no operators: program counters sampled
by the kernel, and the instructions of the loops around them; of the time in loops that multiply, the share in int8.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.runtimes import IMAGE_RECIPES, IMAGES, SHARED, WORD_RECIPES, word_job
from flows.request import NightlyRequest
from storage.artifacts import ArtifactStore
from storage.errors import NightquantError, UnavailableError
from tasks.data.outputs import intra_op_threads
from tasks.domains import domain_named
from tasks.environment.machine import this_machine
from tasks.measure.proof.child import count_families
from tasks.measure.proof.instructions import INT8, Family, Sampler
from tasks.run.stages import build, obtain, prepare
from tasks.runtimes.base import CandidateFiles, runtime_named
from tasks.values.job import Job, Workspace
from tasks.values.proofs import Operator, int8_share
from tasks.workload import Workload

CALLS = 60
_HEADER = (
    "| candidate | all operators | computing operators | sampled loops | points apart | most expensive float operator |"
)
ENOUGH, MOST_SAMPLINGS = 200, 20  # samples in loops that multiply, and periods of sampling to come by them
# They move numbers and multiply none.
_MOVES = re.compile(
    r"concat|cat\b|stack|split|squeeze|gather|index|copy|clone|reshape|transpose|slice|cast|expand|shape|arange|embedding",
    re.IGNORECASE,
)


def main() -> None:
    """Look and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with the tutorial's checkpoint and text")
    parser.add_argument("--only", help="workloads with this in their names")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{this_machine().cpu} ({', '.join(this_machine().isa)}).\n")
    try:
        sampler: Sampler | None = Sampler()  # before any runtime starts threads
    except UnavailableError as error:
        sampler = None
        print(f"Nothing is sampled: {error}\n")
    with tempfile.TemporaryDirectory() as folder, intra_op_threads(1):
        workspace = Workspace(ArtifactStore(Path(folder) / "store"))
        print(_HEADER)
        print("|---|---:|---:|---:|---:|---|")
        for job in jobs(arguments.shared, workspace, arguments.only or ""):
            for line in look(job, workspace, sampler):
                print(line, flush=True)


def jobs(shared: Path, workspace: Workspace, only: str) -> Iterator[Job[Workload]]:
    """The built-in workloads, the tutorial's model at 25 tokens, and ResNet-18 at its usual size, if so called."""
    for workload in NightlyRequest().load_workloads():
        if only in workload.name:
            yield obtain(workspace, workload, prepare(workspace, workload))
    if only in "tutorial":
        words = word_job(shared, workspace)
        quantized = [each for each in words.workload.recipe if each.name in {recipe["name"] for recipe in WORD_RECIPES}]
        tutorial = words.workload.model_copy(update={"name": "tutorial", "recipe": tuple(quantized)})
        yield Job(tutorial, words.dataset, words.checkpoint)
    images = Workload.model_validate(IMAGES | {"recipe": IMAGE_RECIPES})
    if only in images.name:
        yield obtain(workspace, images, prepare(workspace, images))


def look(job: Job[Workload], workspace: Workspace, sampler: Sampler | None) -> Iterator[str]:
    """A line for each candidate that is quantized."""
    workload = job.workload
    inputs = domain_named(workload.domain).example_inputs(workload, job.dataset, workspace.store, 1).values()
    for recipe in workload.recipe:
        for runtime in recipe.runtimes:
            if recipe.method in ("none", "cast"):
                continue
            try:
                candidate = build(workspace, job, recipe, runtime)
            except NightquantError as error:
                yield f"- {workload.name} {recipe.name}/{runtime} is left out: {error}"
                continue
            files = CandidateFiles.find(candidate, workspace.store)
            with torch.inference_mode():
                opened = runtime_named(runtime).opener().open(files, 1)
                with opened.scope():
                    counted = count(sampler, partial(opened.call, *inputs)) if sampler else Counter()
                operators = runtime_named(runtime).opener().profile(files, opened, list(inputs), 1, CALLS)
            yield row(f"{workload.name} {candidate.name}", operators, counted)


def count(sampler: Sampler, call: Callable[[], object]) -> Counter[Family]:
    """Samples by family, of which as many multiply as a share needs to be known to some points, if calls allow."""
    counted: Counter[Family] = Counter()
    for _ in range(MOST_SAMPLINGS):
        counted += count_families(sampler, call)
        if multiplying(counted) >= ENOUGH:
            break
    return counted


def multiplying(counted: Counter[Family]) -> int:
    """How many of the samples fell into loops that multiply and do not quantize."""
    return counted.total() - counted["quantize"] - counted["other"]


def row(name: str, operators: Sequence[Operator], counted: Counter[Family]) -> str:
    """One line of the table."""
    computing = [each for each in operators if each.arithmetic in ("int8", "float") and not _MOVES.search(each.type)]
    # Of a package's compiled loops a profile cannot tell what they compute: the share is between two bounds.
    low, known = int8_share(computing), [each for each in computing if each.type != "compiled loops"]
    high = low + 1 - sum(each.seconds for each in known) / sum(each.seconds for each in computing) if computing else low
    floats = sorted((each for each in operators if each.arithmetic == "float"), key=lambda each: -each.seconds)
    total = sum(each.seconds for each in operators)
    most_expensive = f"{floats[0].type} {floats[0].seconds / total:.0%}" if floats else "–"
    cells = [
        f"{int8_share(operators):.0%}",
        f"{low:.0%}" if len(known) == len(computing) else f"{low:.0%} to {high:.0%}",
    ]
    if among := multiplying(counted):
        sampled = sum(counted[family] for family in INT8) / among
        cells += [f"{sampled:.0%}", f"{100 * max(low - sampled, sampled - high, 0):.0f}"]
    else:
        cells += ["–", "–"]
    return f"| {name} | {' | '.join(cells)} | {most_expensive} |"


if __name__ == "__main__":
    main()

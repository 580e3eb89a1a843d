"""``manifest.json``: a description of the bundle that conforms to ``storage/manifest.schema.json``."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from storage.errors import shown
from storage.results import Row
from tasks.data.tensor_files import GOLDEN, INPUT, OUTPUT, case_prefix, names_of
from tasks.decide.gate import GateDecision
from tasks.domains import domain_named
from tasks.environment.machine import this_machine, versions
from tasks.quantize.spec import spec_of
from tasks.runtimes.base import runtime_named
from tasks.values.job import Job
from tasks.values.refs import CandidateRef
from tasks.values.results import Evaluation
from tasks.workload.workload import Workload

_RAW = ("block_launch", "block_round", "block_s")

Json = dict[str, object]


@dataclass(frozen=True)
class Provenance:
    """Data for packaging a bundle."""

    job: Job[Workload]
    candidate: CandidateRef
    evaluation: Evaluation
    decision: GateDecision
    measurements: Sequence[Row]
    night: date
    run_id: str


def manifest_of(
    provenance: Provenance, version: str, files: Sequence[str], golden: Path, resources: Mapping[str, str]
) -> Json:
    """Return the manifest; `files` lists the runtime's files, beginning with the main file."""
    workload, runtime = provenance.job.workload, runtime_named(provenance.candidate.runtime)
    recipe = workload.recipe_named(provenance.candidate.recipe)
    inputs, outputs, cases = describe_golden(golden, provenance)
    return {
        "format": 1,
        "workload": _described(workload),
        "version": version,
        "night": provenance.night.isoformat(),
        "run_id": provenance.run_id,
        "recipe": recipe.model_dump(mode="json"),
        "engine": runtime.engine(recipe),
        "required_isa": {
            "architecture": " or ".join(runtime.architectures) or platform.machine(),
            "instructions": runtime.required_instructions(recipe),
            "packaged_on": this_machine().cpu,
        },
        "sources": {
            "checkpoint": provenance.job.checkpoint.digest,
            "data": provenance.job.dataset.digest,
            "quantized": provenance.candidate.digest,
            "outputs": provenance.evaluation.outputs.digest,
            "calibration": provenance.job.dataset.calibration_digest or None,
        },
        "model": {
            "file": files[0],
            "files": list(files),
            "runtime": provenance.candidate.runtime,
            "parameters": provenance.job.checkpoint.parameters,
            "inputs": inputs,
            "outputs": outputs,
        },
        "golden": {
            "file": GOLDEN,
            "tolerance_share": spec_of(recipe).tolerance,
            "cases": cases,
            "chooses": domain_named(workload.domain).chooses(workload),
        },
        "resources": dict(resources),
        "measurements": list(_measurements(provenance)),
        "gate": provenance.decision.model_dump(mode="json", include={"decision", "objective", "reason", "rules"}),
        "versions": versions("nightquant", *runtime.distributions),
        "licence": workload.licence,
        "not_reproducible": [{"file": name, "why": why} for name, why in runtime.not_reproducible.items()],
    }


def describe_golden(path: Path, provenance: Provenance) -> tuple[list[Json], list[Json], int]:
    """Return manifest entries for the golden inputs and outputs, and the number of cases."""
    domain = domain_named(provenance.job.workload.domain)
    recipe = provenance.job.workload.recipe_named(provenance.candidate.recipe)
    with safe_open(path, framework="numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - file is not a dict
        names, output_names = names_of(file.metadata() or {})
    count = sum(key.startswith(OUTPUT) for key in tensors)
    cases = 1 + max((int(key.partition(".")[0]) for key in tensors if key[:1].isdigit()), default=0)
    ranges = domain.input_ranges(provenance.job.dataset)
    inputs = [
        _described_tensor(name, INPUT + name, tensors[INPUT + name])
        | ({"allowed": list(ranges[name])} if name in ranges else {})
        for name in names
    ]
    share = spec_of(recipe).tolerance
    outputs = []
    for index in range(count):
        key = f"{OUTPUT}{index}"
        name = output_names[index] if index < len(output_names) else f"output-{index}"
        all_cases = [tensors[case_prefix(number) + key] for number in range(cases)]
        low, high = float(min(case.min() for case in all_cases)), float(max(case.max() for case in all_cases))
        # The range of a constant output is 0, so use the output's magnitude, or 1 if the magnitude is 0.
        tolerance = share * (high - low or abs(high) or 1.0)
        outputs.append(_described_tensor(name, key, tensors[key]) | {"tolerance": tolerance})
    return inputs, outputs, cases


def _described_tensor(name: str, key: str, tensor: NDArray[np.generic]) -> Json:
    return {
        "name": name,
        "golden": key,
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "minimum": tensor.min().item(),
        "maximum": tensor.max().item(),
    }


def _described(workload: Workload) -> Json:
    # A URI may contain a password or a signed query, which must not be published with the bundle.
    described: dict[str, Json] = workload.model_dump(mode="json", include={"model", "data", "checkpoint"})
    for section in (described["data"], described["checkpoint"]):
        if isinstance(uri := section.get("uri"), str):
            section["uri"] = shown(uri)
    return {"name": workload.name, "description": workload.description, "domain": workload.domain, **described}


def _measurements(provenance: Provenance) -> Iterator[Json]:
    baseline = provenance.job.workload.baseline_name.recipe
    for row in provenance.measurements:
        if row["recipe"] in (provenance.candidate.recipe, baseline):
            yield {name: _as_json(value) for name, value in row.items() if name not in _RAW and _is_known(value)}


def _is_known(value: object) -> bool:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))


def _as_json(value: object) -> object:
    if isinstance(value, Mapping | list):  # a map column is a mapping or a list of (key, value) pairs
        return {name: number for name, number in dict(value).items() if _is_known(number)}
    return value.isoformat() if isinstance(value, date) else value

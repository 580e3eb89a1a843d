"""``manifest.json``: what the bundle is, in the terms of ``storage/manifest.schema.json``."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from storage.transfer import shown
from tasks.bundle.golden import GOLDEN, Golden
from tasks.gate import GateDecision
from tasks.refs import CheckpointRef, DatasetRef, Evaluation, QuantizedRef
from tasks.workload.recipe import Engine
from tasks.workload.workload import Workload

MODEL, WEIGHTS, STRUCTURE = "model.ts", "weights.safetensors", "structure.json"

# What the engine's kernels need to run at all. Faster ones (AVX-512, VNNI) are chosen at run time where they exist.
_INSTRUCTIONS: dict[Engine, tuple[str, ...]] = {
    "x86": ("avx2",),
    "fbgemm": ("avx2",),
    "onednn": ("avx2",),
    "qnnpack": (),
}
_LIBRARIES = ("torch", "torchvision", "numpy", "safetensors", "nightquant")
_RAW = ("block_launch", "block_round", "block_s")
_NOT_REPRODUCIBLE = [
    {
        "file": MODEL,
        "why": "TorchScript numbers its types by what the process traced before and keeps source locations; "
        "the file is the very one that was measured, but quantizing anew gives other bytes",
    }
]


@dataclass(frozen=True)
class Provenance:
    """Everything that a bundle is made from."""

    workload: Workload
    quantized: QuantizedRef
    evaluation: Evaluation
    decision: GateDecision
    measurements: Sequence[Mapping[str, Any]]
    dataset: DatasetRef
    checkpoint: CheckpointRef
    night: date
    run_id: str


def manifest_of(made: Provenance, bundle_version: str, golden: Golden, resources: Mapping[str, str]) -> dict[str, Any]:
    """The manifest as a JSON document."""
    workload = made.workload
    recipe = workload.recipe_named(made.quantized.recipe)
    return {
        "format": 1,
        "workload": _described(workload),
        "version": bundle_version,
        "night": made.night.isoformat(),
        "run_id": made.run_id,
        "recipe": recipe.model_dump(mode="json"),
        "engine": None if recipe.method == "none" else recipe.engine,
        "required_isa": {
            "architecture": platform.machine(),
            "instructions": [] if recipe.method == "none" else list(_INSTRUCTIONS[recipe.engine]),
            "packaged_on": processor(),
        },
        "sources": {
            "checkpoint": made.checkpoint.digest,
            "data": made.dataset.digest,
            "quantized": made.quantized.digest,
            "outputs": made.evaluation.outputs.digest,
            "calibration": made.dataset.calibration_digest or None,
        },
        "model": {
            "file": MODEL,
            "runtime": "torchscript",
            "parameters": made.checkpoint.parameters,
            "inputs": [_bounded(entry, made.dataset) for entry in golden.inputs],
            "outputs": golden.outputs,
        },
        "weights": {"file": WEIGHTS, "structure": STRUCTURE},
        "golden": {"file": GOLDEN, "tolerance_share": golden.share},
        "resources": dict(resources),
        "measured_runtime": made.decision.runtime,
        "measurements": list(_measurements(made)),
        "gate": made.decision.model_dump(mode="json", include={"decision", "objective", "reason", "rules"}),
        "versions": versions(),
        "licence": workload.licence,
        "not_reproducible": _NOT_REPRODUCIBLE,
    }


def _described(workload: Workload) -> dict[str, Any]:
    # A bundle goes to others, and a URI may carry a password or a signed query.
    described = workload.model_dump(
        mode="json", include={"name", "description", "purpose", "model", "data", "checkpoint"}
    )
    for section in (described["data"], described["checkpoint"]):
        if "uri" in section:
            # fsspec chains addresses: zip://inner.pth::https://host/outer.zip
            section["uri"] = "::".join(shown(part) for part in section["uri"].split("::"))
    return described


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide what a model computes."""
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            # A checkout can run without being installed; it is still recorded that it was nightquant.
            found[library] = "not installed"
    return found


def processor() -> str:
    """The processor's model as Linux names it, or the machine type elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _bounded(entry: dict[str, Any], dataset: DatasetRef) -> dict[str, Any]:
    """Word ids beyond the vocabulary would read beyond the embedding's rows."""
    if dataset.vocabulary and entry["name"] == "tokens":
        return {**entry, "allowed": [0, dataset.vocabulary - 1]}
    return entry


def _measurements(made: Provenance) -> Iterable[dict[str, Any]]:
    baseline, _ = made.workload.baseline()
    for row in made.measurements:
        if row["workload"] == made.workload.name and row["recipe"] in (made.quantized.recipe, baseline):
            yield {name: _as_json(value) for name, value in row.items() if name not in _RAW and _is_known(value)}


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _as_json(value: Any) -> Any:
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): number for name, number in value.items() if _is_known(number)}
    if isinstance(value, list | tuple):  # a map column as pyarrow gives it
        return {str(name): number for name, number in value if _is_known(number)}
    return value

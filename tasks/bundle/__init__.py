"""Packaging: the promoted candidate becomes an immutable bundle that a deploy team can verify alone.

Nothing here imports torch: the model is only copied, and loaded by the verification in a process of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

from storage.artifacts import ArtifactStore
from storage.bundles import BundleStore
from storage.checksums import write_sums
from storage.digest import digest_of
from storage.errors import BundleError
from storage.manifest import MANIFEST, check_manifest
from storage.signing import sign, signing_key
from tasks.bundle.card import model_card
from tasks.bundle.golden import GOLDEN, describe_golden, input_names
from tasks.bundle.manifest import MODEL, STRUCTURE, WEIGHTS, Provenance, manifest_of
from tasks.bundle.resources import write_resources
from tasks.bundle.verify import CHECKER, verify
from tasks.gate import GateDecision
from tasks.progress import Progress, silent
from tasks.refs import CheckpointRef, DatasetRef, Evaluation, Frozen, QuantizedRef
from tasks.workload.workload import Workload

CARD, VERIFY = "MODEL_CARD.md", "verify.py"


class BundleRef(Frozen):
    """A bundle: ``location`` is its folder relative to the store's root, ``sha256sums`` the digest of its list.

    ``outcome``: published (new and current now), kept (it was current already), restored (an earlier bundle of the same
    content is current again), withdrawn (people rolled back from this content; what they chose stays current).
    """

    workload: str
    version: str
    location: str
    sha256sums: str
    outcome: Literal["published", "kept", "restored", "withdrawn"]


def package(
    workload: Workload,
    quantized: QuantizedRef,
    evaluation: Evaluation,
    decision: GateDecision,
    measurements: Sequence[Mapping[str, Any]],
    dataset: DatasetRef,
    checkpoint: CheckpointRef,
    store: ArtifactStore,
    bundles: BundleStore | None = None,
    *,
    night: date,
    run_id: str,
    key: str | None = None,
    progress: Progress = silent,
) -> BundleRef:
    """Hand over the promoted candidate.

    A version is the night and twelve digits of a digest of what decides the content; content that was handed over
    before is not packaged again, whatever the night.

    Parameters
    ----------
    measurements
        The workload's rows of the ``measurements`` table.
    bundles
        Where to; by default the store that the artifacts lie in.
    key
        Ed25519 key that signs the bundle, as PEM text or path; by default the environment's.

    Returns
    -------
    BundleRef
        The bundle that is current afterwards.

    Raises
    ------
    BundleError
        The candidate was not promoted, or its TorchScript does not reproduce the golden outputs; nothing is published.
    """
    if decision.decision != "promote":
        raise BundleError(f"{workload.name} {decision.candidate} was not promoted: {decision.reason}.")
    bundles = bundles or BundleStore(store.place)
    content = _content(workload, quantized, dataset)[:12]
    existing = next((version for version in bundles.versions(workload.name) if version.endswith(content)), None)
    version = existing or f"{night.isoformat()}-{content}"
    before = bundles.current(workload.name)
    if existing is None:
        made = Provenance(workload, quantized, evaluation, decision, measurements, dataset, checkpoint, night, run_id)
        with bundles.draft() as folder:
            _fill(folder, version, made, store, key)
            progress(1, 2, "steps")
            bundles.publish(folder, workload.name, version)
    current = bundles.promote(workload.name, version, by=f"run {run_id}", reason=decision.reason)
    progress(2, 2, "steps")
    outcome: Literal["published", "kept", "restored", "withdrawn"] = "published" if existing is None else "restored"
    if before is not None and before.version == current.version:
        outcome = "kept" if current.version == version else "withdrawn"
    return BundleRef(
        workload=workload.name,
        version=current.version,
        location=f"handoff/{workload.name}/{current.version}",
        sha256sums=current.sha256sums,
        outcome=outcome,
    )


def _content(workload: Workload, quantized: QuantizedRef, dataset: DatasetRef) -> str:
    # Neither measurements nor the runtime: the same model file measured again is no reason to deploy anew.
    decides = {"format": 1, "workload": workload.name, "licence": workload.licence}
    return digest_of({**decides, "quantized": quantized.digest, "data": dataset.digest})


def _fill(folder: Path, version: str, made: Provenance, store: ArtifactStore, key: str | None) -> None:
    """Write every file of the bundle, seal it, and verify it as a deploy team would."""
    model = store.path(made.quantized.kind, made.quantized.digest)
    outputs = store.path(made.evaluation.outputs.kind, made.evaluation.outputs.digest)
    for source in (model / MODEL, model / WEIGHTS, model / STRUCTURE, outputs / GOLDEN):
        shutil.copyfile(source, folder / source.name)
    shutil.copyfile(CHECKER, folder / VERIFY)
    recipe = made.workload.recipe_named(made.quantized.recipe)
    golden = describe_golden(folder / GOLDEN, input_names(folder / STRUCTURE), recipe, made.workload.purpose)
    resources = write_resources(made.workload, made.dataset, store, folder)
    manifest = manifest_of(made, version, golden, resources)
    check_manifest(manifest)
    signer = signing_key(key)
    text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="ascii")
    (folder / CARD).write_text(model_card(manifest, signed=signer is not None), encoding="utf-8")
    write_sums(folder)
    if signer is not None:
        sign(folder, signer)
    report = verify(folder)
    if not report.ok:
        raise BundleError(
            f"{made.workload.name} {made.decision.candidate} is not handed over: {report.problem}",
            hint="The TorchScript model does not compute what was evaluated; the candidate needs a look.",
        )

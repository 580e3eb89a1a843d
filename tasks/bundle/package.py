"""Packaging: the promoted candidate becomes an immutable bundle that a deploy team can verify alone.

Nothing here imports torch: the runtime's files are only copied, and loaded by the verification in a process of its own.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from jinja2 import ChainableUndefined, Environment

from storage.bundles import BundleStore
from storage.digest import digest_of, file_digest
from storage.errors import BundleError
from storage.pointer import Pointer
from storage.recovery import by_run
from storage.seal import MANIFEST, SUMS, check_manifest, sign, write_sums
from storage.trust import Signer
from tasks.bundle.manifest import Provenance, manifest_of
from tasks.bundle.origin import PROVENANCE, SBOM, installed_packages, provenance_of, sbom_of
from tasks.bundle.verify import checker_source, verify
from tasks.domains.base import Domain
from tasks.extensions import DOMAINS, RUNTIMES
from tasks.job import Job, Workspace
from tasks.refs import CandidateRef, Frozen
from tasks.runtimes.base import DOCUMENT, Runtime
from tasks.tensor_files import GOLDEN
from tasks.workload.base import Kind
from tasks.workload.workload import Workload

CARD, VERIFY = "MODEL_CARD.md", "verify.py"
_CARD_TEMPLATE = Path(__file__).with_name("card.md.j2")

Outcome = Literal["published", "kept", "restored", "withdrawn"]


class BundleRef(Frozen):
    """A bundle: ``location`` is its folder relative to the store's root, ``sha256sums`` the digest of its list.

    ``outcome``: published (new and current now), kept (it was current already), restored (an earlier bundle of the same
    content is current again), withdrawn (people rolled back from this content; what they chose stays current).
    """

    workload: str
    version: str
    location: str
    sha256sums: str
    outcome: Outcome


def package(made: Provenance, workspace: Workspace, bundles: BundleStore, replacing: str | None) -> BundleRef:
    """Hand over the promoted candidate; return the bundle that is current afterwards.

    A version is the night and twelve digits of a digest of what decides the content; content that was handed over
    before is not packaged again, whatever the night, unless there is a key that did not sign it.

    Parameters
    ----------
    bundles
        Where to, and who signs; by default the store that the artifacts lie in, and nobody.
    replacing
        The version that the candidate was compared with, None if no bundle was current; by default the one that is
        current when packaging begins.

    Raises
    ------
    BundleError
        The candidate was not promoted, its runtime cannot be handed over, or its files do not reproduce the golden
        outputs; nothing is published.
    ConflictError
        Another bundle became current meanwhile, which stays; the new bundle is published and not current.
    """
    workload, decision = made.job.workload, made.decision
    if decision.decision != "promote":
        raise BundleError(f"{workload.name} {decision.candidate} was not promoted: {decision.reason}.")
    if decision.candidate != made.candidate.name or not RUNTIMES[made.candidate.runtime].hands_over:
        raise BundleError(f"{workload.name} {made.candidate.name} cannot be handed over.")
    content = content_of(made.job, made.candidate)
    before = bundles.pointer(workload.name)
    withdrawn = before.withdrawn if before else ()
    # Others may have put a bundle there, under the name that this content would have.
    existing = next(
        (
            version
            for version in bundles.versions(workload.name)
            if version.endswith(content) and (version in withdrawn or bundles.is_signed(workload.name, version))
        ),
        None,
    )
    version = existing or f"{made.night.isoformat()}-{content}"
    if existing is None:
        with bundles.draft() as folder:
            _fill(folder, version, made, workspace, bundles.signer)
            workspace.progress(1, 2, "steps")
            bundles.publish(folder, workload.name, version)
    by = by_run(made.run_id)
    current = bundles.promote(workload.name, version, by=by, reason=decision.reason, replacing=replacing)
    workspace.progress(2, 2, "steps")
    outcome: Outcome = "published" if existing is None else "restored"
    if before is not None and before.version == current.version:
        outcome = "kept" if current.version == version else "withdrawn"
    return BundleRef(
        workload=workload.name,
        version=current.version,
        location=f"handoff/{workload.name}/{current.version}",
        sha256sums=current.sha256sums,
        outcome=outcome,
    )


def content_of(job: Job[Workload], candidate: CandidateRef) -> str:
    """Return the digits at the end of every version that holds this candidate, whatever its night."""
    # Not the measurements: the same files measured again are no reason to deploy anew.
    decides = {"format": 1, "workload": job.workload.name, "licence": job.workload.licence}
    return digest_of({**decides, "candidate": candidate.digest, "data": job.dataset.digest})[:12]


def withdrawn_contents(pointer: Pointer) -> frozenset[str]:
    """Return the contents, as from `content_of`, that people rolled back from and that are not in service again."""
    in_service, *withdrawn = (version.rpartition("-")[2] for version in (pointer.version, *pointer.withdrawn))
    return frozenset(withdrawn) - {in_service}


def _fill(folder: Path, version: str, made: Provenance, workspace: Workspace, signer: Signer | None) -> None:
    """Write every file of the bundle, seal it, and verify it as a deploy team would."""
    store, runtime = workspace.store, made.candidate.runtime
    # Copies, held against the artifacts' digests: what is signed below is what was evaluated and timed.
    names = store.copy(made.candidate.kind, made.candidate.digest, folder, without=DOCUMENT)
    files = sorted(names, key=lambda name: (name != RUNTIMES[runtime].main_file, name))
    store.copy(made.evaluation.outputs.kind, made.evaluation.outputs.digest, folder, only=GOLDEN)
    (folder / VERIFY).write_text(checker_source(runtime), encoding="utf-8")
    domain = DOMAINS[made.job.workload.domain]
    resources = domain.write_resources(made.job, store, folder)
    manifest = manifest_of(made, version, files, folder / GOLDEN, resources)
    check_manifest(manifest)
    _write_json(folder / MANIFEST, manifest)
    card = _model_card(manifest, domain, RUNTIMES[runtime], signed=signer is not None)
    (folder / CARD).write_text(card, encoding="utf-8")
    workload = made.job.workload.name
    _write_json(folder / SBOM, sbom_of(workload, version, installed_packages(), platform.python_version()))
    digests = {path.name: file_digest(path) for path in folder.iterdir() if path.name != SUMS}
    _write_json(folder / PROVENANCE, provenance_of(made, digests, store))
    write_sums(folder)
    if signer is not None:
        sign(folder, signer.keys[0])
    report = verify(folder)
    if not report.ok:
        raise BundleError(
            f"{made.job.workload.name} {made.candidate.name} is not handed over: {report.problem}",
            hint="The runtime's files do not compute what was evaluated; the candidate needs a look.",
        )


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="ascii")


def _model_card(
    manifest: Mapping[str, object], domain: Domain[Workload, Kind], runtime: Runtime, *, signed: bool
) -> str:
    """The manifest for people; it says nothing that the manifest does not hold."""
    # Markdown, never shown as HTML by this project; rows lack what was not measured, hence the lenient undefined.
    environment = Environment(
        autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=ChainableUndefined
    )
    environment.filters["number"] = _number
    template = environment.from_string(_CARD_TEMPLATE.read_text(encoding="utf-8"))
    usage = environment.from_string(domain.usage + runtime.usage).render(m=manifest)
    return template.render(m=manifest, runtime=runtime, usage=usage, signed=signed)


def _number(value: object, spec: str = ".4g", scale: float = 1.0, unit: str = "") -> str:
    return f"{value / scale:{spec}}{unit}" if isinstance(value, int | float) else "–"

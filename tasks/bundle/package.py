"""Package the promoted candidate as an immutable bundle that a deployment team can verify without nightquant."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jinja2 import ChainableUndefined, Environment

from storage.bundles import BundleStore
from storage.digest import digest_of, file_digest
from storage.errors import BundleError
from storage.humanize import minutes, plural
from storage.pointer import Pointer, by_run
from storage.seal import MANIFEST, SIGNATURE, SUMS, Signer, check_manifest, write_sums
from tasks.bundle.manifest import Provenance, manifest_of
from tasks.bundle.origin import PROVENANCE, SBOM, installed_packages, provenance_of, sbom_of
from tasks.bundle.verify import checker_source, packages_of, verify
from tasks.extensions import DOMAINS, RUNTIMES
from tasks.job import Job, Workspace
from tasks.refs import CandidateRef, Frozen
from tasks.runtimes.base import DOCUMENT, Runtime
from tasks.tensor_files import GOLDEN
from tasks.workload.base import Kind
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from tasks.domains.base import Domain

CARD, VERIFY = "MODEL_CARD.md", "verify.py"
_CARD_TEMPLATE = Path(__file__).with_name("card.md.j2")

Outcome = Literal["published", "kept", "restored", "withdrawn"]


class BundleRef(Frozen):
    """A bundle; ``location`` is a folder below the store's root, and ``sha256sums`` is the digest of ``SHA256SUMS``.

    ``outcome`` is ``"published"`` for a new bundle, ``"kept"`` if it was already current, and ``"restored"`` if an
    earlier bundle with the same content is current again. It is ``"withdrawn"`` if a user rolled back from the same
    content; the bundle that the user chose stays current.
    """

    workload: str
    version: str
    location: str
    sha256sums: str
    outcome: Outcome


def package(provenance: Provenance, workspace: Workspace, bundles: BundleStore, replacing: str | None) -> BundleRef:
    """Publish the promoted candidate; return the bundle that is current afterwards.

    A version's name consists of the night and twelve digits of the content's digest. Content that has been published
    with the required signature is not packaged again. `replacing` is the version with which the candidate was compared,
    or None.

    Raises
    ------
    BundleError
        The files of the candidate do not reproduce the golden outputs. No bundle is published.
    ConflictError
        Another bundle became current in the meantime, and stays current.
    """
    workload, candidate, decision = provenance.job.workload, provenance.candidate, provenance.decision
    content = content_of(provenance.job, candidate)
    before = bundles.pointer(workload.name)
    withdrawn = before.withdrawn if before else ()
    measured = workspace.store.digests(candidate.kind, candidate.digest, without=DOCUMENT)

    def is_published(version: str) -> bool:
        # Check signatures, because another writer may have stored an unsigned bundle under the same version name. Check
        # the files, because not every runtime builds reproducible files, and only the measured files may be published.
        if version in withdrawn:
            return True
        return (
            bundles.is_signed(workload.name, version)
            and measured.items() <= bundles.digests(workload.name, version).items()
        )

    versions = bundles.versions(workload.name)
    existing = next((version for version in versions if version.endswith(content) and is_published(version)), None)
    version = existing or f"{provenance.night.isoformat()}-{content}"
    if existing is None:
        with bundles.draft() as folder:
            _fill(folder, version, provenance, workspace, bundles.signer)
            workspace.progress(1, 2, "steps")
            is_new = bundles.publish(folder, workload.name, version)
        if not is_new and not is_published(version):
            raise BundleError(
                f"The bundle {version} of {workload.name} was published before, and {candidate.name} has been built "
                "again with other files since.",
                hint="The next night publishes the new files under a name of its own.",
            )
    by = by_run(provenance.run_id)
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
    """Return the twelve digits at the end of this candidate's version name; the digits are the same every night."""
    # The digits do not depend on measurements, so that measuring the same files again does not create a new version.
    decides = {"format": 1, "workload": job.workload.name, "licence": job.workload.licence}
    return digest_of({**decides, "candidate": candidate.digest, "data": job.dataset.digest})[:12]


def withdrawn_contents(pointer: Pointer) -> frozenset[str]:
    """Return the content digits (`content_of`) of bundles from which users rolled back, except the current bundle."""
    in_service, *withdrawn = (version.rpartition("-")[2] for version in (pointer.version, *pointer.withdrawn))
    return frozenset(withdrawn) - {in_service}


def _fill(folder: Path, version: str, provenance: Provenance, workspace: Workspace, signer: Signer | None) -> None:
    """Write and seal the bundle, and verify it as a deployment team would."""
    store, runtime = workspace.store, provenance.candidate.runtime
    # Digests are checked during the copy, so the bundle contains the same bytes that were evaluated and timed.
    names = store.copy(provenance.candidate.kind, provenance.candidate.digest, folder, without=DOCUMENT)
    files = sorted(names, key=lambda name: (name != RUNTIMES[runtime].main_file, name))
    store.copy(provenance.evaluation.outputs.kind, provenance.evaluation.outputs.digest, folder, only=GOLDEN)
    (folder / VERIFY).write_text(checker_source(runtime), encoding="utf-8")
    domain = DOMAINS[provenance.job.workload.domain]
    resources = domain.write_resources(provenance.job, store, folder)
    manifest = manifest_of(provenance, version, files, folder / GOLDEN, resources)
    check_manifest(manifest)
    _write_json(folder / MANIFEST, manifest)
    card = _model_card(manifest, domain, RUNTIMES[runtime], signed=signer is not None)
    (folder / CARD).write_text(card, encoding="utf-8")
    workload = provenance.job.workload.name
    bom = sbom_of(workload, version, installed_packages(), platform.python_version())
    (folder / SBOM).write_text(bom, encoding="ascii")
    digests = {path.name: file_digest(path) for path in folder.iterdir() if path.name != SUMS}
    _write_json(folder / PROVENANCE, provenance_of(provenance, digests, store))
    write_sums(folder)
    if signer is not None:
        (folder / SIGNATURE).write_bytes(signer.sign_bundle(folder))
    report = verify(folder, signer.key.public_key() if signer else None)
    if not report.ok:
        raise BundleError(
            f"The candidate {provenance.candidate.name} of {provenance.job.workload.name} was not published: "
            f"{report.problem}",
            hint=f"The files for the {provenance.candidate.runtime} runtime do not reproduce the evaluated outputs. "
            "Remove this runtime from the recipe.",
        )


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="ascii")


def _model_card(
    manifest: Mapping[str, object], domain: Domain[Workload, Kind], runtime: Runtime, *, signed: bool
) -> str:
    """Render the manifest as a Markdown page, without adding facts."""
    # nightquant never renders the card's Markdown as HTML, so values are not escaped. ``ChainableUndefined`` allows
    # rows that lack columns.
    environment = Environment(
        autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=ChainableUndefined
    )
    environment.filters |= {"number": _number, "minutes": minutes, "plural": plural}
    template = environment.from_string(_CARD_TEMPLATE.read_text(encoding="utf-8"))
    usage = environment.from_string(domain.usage + runtime.usage).render(m=manifest)
    checker = checker_source(str(manifest["measured_runtime"]))
    return template.render(
        m=manifest,
        runtime=runtime,
        usage=usage,
        signed=signed,
        verifies_with=packages_of(checker),
        runs_with=packages_of(checker, usage),
    )


def _number(value: object, spec: str = ".4g", scale: float = 1.0, unit: str = "") -> str:
    return f"{value / scale:{spec}}{unit}" if isinstance(value, int | float) else "–"

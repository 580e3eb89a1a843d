"""Package the promoted candidate as an immutable bundle that a deployment team can verify without nightquant."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from jinja2 import ChainableUndefined, Environment
from packageurl import PackageURL

from storage.bundles import BundleStore
from storage.digest import digest_of
from storage.errors import BundleError
from storage.pointer import Pointer, by_run
from storage.seal import MANIFEST, SIGNATURE, Signer, check_manifest, write_sums
from tasks.data.tensor_files import GOLDEN
from tasks.domains import domain_named
from tasks.environment.machine import installed_version
from tasks.publish.manifest import Provenance, manifest_of
from tasks.publish.verify import checker_source, verify
from tasks.runtimes.base import DOCUMENT, Runtime, runtime_named
from tasks.values.job import Job, Workspace
from tasks.values.refs import CandidateRef, Frozen
from tasks.workload.base import Kind
from tasks.workload.recipe import CandidateName
from tasks.workload.workload import Workload

if TYPE_CHECKING:
    from tasks.domains.base import Domain

CARD, VERIFY, SBOM = "MODEL_CARD.md", "verify.py", "sbom.cdx.json"
_CARD_TEMPLATE = Path(__file__).with_name("card.md.j2")

Outcome = Literal["published", "kept", "restored", "withdrawn"]


class BundleRef(Frozen):
    """A bundle; ``sha256sums`` is the digest of ``SHA256SUMS``.

    ``outcome`` is ``"kept"`` if the bundle was already current, ``"restored"`` if an earlier bundle with the same
    content is current again, and ``"withdrawn"`` if a user rolled back from the same content.
    """

    workload: str
    version: str
    location: str
    sha256sums: str
    outcome: Outcome


def package(provenance: Provenance, workspace: Workspace, bundles: BundleStore, replacing: str | None) -> BundleRef:
    """Publish the promoted candidate; return the bundle that is current afterwards.

    Content that has been published with the required signature is not packaged again. `replacing` is the version with
    which the candidate was compared; if another bundle is current, it stays current (`ConflictError`).
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


def withdrawn_among(
    candidates: Iterable[CandidateRef], job: Job[Workload], pointer: Pointer
) -> tuple[CandidateName, ...]:
    """Return the candidates with the content of a bundle from which users rolled back, except the current bundle."""
    in_service, *withdrawn = (version.rpartition("-")[2] for version in (pointer.version, *pointer.withdrawn))
    contents = set(withdrawn) - {in_service}
    return tuple(candidate.name for candidate in candidates if content_of(job, candidate) in contents)


def _fill(folder: Path, version: str, provenance: Provenance, workspace: Workspace, signer: Signer | None) -> None:
    """Write and seal the bundle, and verify it as a deployment team would."""
    store, runtime = workspace.store, provenance.candidate.runtime
    # Digests are checked during the copy, so the bundle contains the same bytes that were evaluated and timed.
    names = store.copy(provenance.candidate.kind, provenance.candidate.digest, folder, without=DOCUMENT)
    files = sorted(names, key=lambda name: (name != runtime_named(runtime).main_file, name))
    store.copy(provenance.evaluation.outputs.kind, provenance.evaluation.outputs.digest, folder, only=GOLDEN)
    (folder / VERIFY).write_text(checker_source(runtime), encoding="utf-8")
    domain = domain_named(provenance.job.workload.domain)
    resources = domain.write_resources(provenance.job, store, folder)
    manifest = manifest_of(provenance, version, files, folder / GOLDEN, resources)
    check_manifest(manifest)
    document = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False) + "\n"
    (folder / MANIFEST).write_text(document, encoding="ascii")
    card = _model_card(manifest, domain, runtime_named(runtime), signed=signer is not None)
    (folder / CARD).write_text(card, encoding="utf-8")
    bom = sbom_of(provenance.job.workload.name, version, installed_packages())
    (folder / SBOM).write_text(bom, encoding="ascii")
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


def _model_card(
    manifest: Mapping[str, object], domain: Domain[Workload, Kind], runtime: Runtime, *, signed: bool
) -> str:
    """Render the manifest as a Markdown page, without adding facts."""
    # nightquant never renders the card's Markdown as HTML, so values are not escaped. ``ChainableUndefined`` allows
    # rows that lack columns.
    environment = Environment(
        autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=ChainableUndefined
    )
    environment.filters["number"] = _number
    template = environment.from_string(_CARD_TEMPLATE.read_text(encoding="utf-8"))
    usage = environment.from_string(domain.usage + runtime.usage).render(m=manifest)
    return template.render(m=manifest, runtime=runtime, usage=usage, signed=signed)


def _number(value: object, spec: str = ".4g", scale: float = 1.0, unit: str = "") -> str:
    return f"{value / scale:{spec}}{unit}" if isinstance(value, int | float) else "–"


def sbom_of(name: str, version: str, packages: Sequence[Component]) -> str:
    """Return a bundle's bill of materials as CycloneDX 1.6 JSON (cyclonedx.org/docs/1.6/json)."""
    builder = installed_version("nightquant") or "unknown"
    bundle = Component(name=name, version=version, type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref="bundle")
    python = Component(name="python", version=platform.python_version(), type=ComponentType.PLATFORM, bom_ref="python")
    bom = Bom(components=[python, *packages], serial_number=uuid5(NAMESPACE_URL, f"{name}/{version}"))
    bom.metadata.component = bundle
    bom.metadata.timestamp = None  # type: ignore[assignment]  # identical inputs must give identical bytes
    bom.metadata.tools.components.add(
        Component(name="nightquant", version=builder, type=ComponentType.APPLICATION, bom_ref="builder")
    )
    bom.register_dependency(bundle, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def installed_packages(path: Sequence[str] | None = None) -> tuple[Component, ...]:
    """Return importable distributions, sorted by name; if several have the same name, return only the first."""
    packages: dict[str, Component] = {}
    for installed in distributions() if path is None else distributions(path=list(path)):
        # An interrupted installation leaves a distribution without metadata.
        if installed.read_text("METADATA") is None and installed.read_text("PKG-INFO") is None:
            continue
        name = re.sub(r"[-_.]+", "-", _first(installed, "Name")).lower()
        if name and name not in packages:
            purl, licence = PackageURL("pypi", name=name, version=installed.version), _licence(installed)
            packages[name] = Component(
                name=name,
                version=installed.version,
                bom_ref=str(purl),
                purl=purl,
                licenses=[licence] if licence else (),
            )
    return tuple(packages[name] for name in sorted(packages))


def _licence(distribution: Distribution) -> License | None:
    """Return the SPDX expression; else the classifiers' licences; else the first line of the licence's text."""
    if expression := _first(distribution, "License-Expression"):
        return LicenseExpression(expression)
    classifiers = [line for line in distribution.metadata.get_all("Classifier") or () if line.startswith("License ::")]
    first = _first(distribution, "License").strip().partition("\n")[0][:100]
    named = ", ".join(line.rpartition(" :: ")[2] for line in classifiers) or first
    return DisjunctiveLicense(name=named) if named else None


def _first(distribution: Distribution, field: str) -> str:
    return str(next(iter(distribution.metadata.get_all(field) or ()), ""))

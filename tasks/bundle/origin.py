"""Two machine-readable files that describe a bundle's origin.

``provenance.intoto.json`` is an in-toto statement (in-toto.io/Statement/v1) with a SLSA predicate
(slsa.dev/provenance/v1). ``sbom.cdx.json`` is a CycloneDX 1.6 bill of materials for the packages installed on the host.
The files contain no timestamps, so identical inputs give identical bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from storage.artifacts import ArtifactStore
from storage.digest import canonical_json
from tasks.bundle.manifest import Json, Provenance
from tasks.machine import installed_version
from tasks.refs import ArtifactRef

PROVENANCE, SBOM = "provenance.intoto.json", "sbom.cdx.json"
BUILD_TYPE = "urn:nightquant:night:1"
_VERSION = installed_version("nightquant") or "unknown"


def provenance_of(provenance: Provenance, files: Mapping[str, str], store: ArtifactStore) -> Json:
    """Return the in-toto statement about a bundle.

    Parameters
    ----------
    files
        SHA-256 of each file in the bundle, keyed by name. The `SBOM` file must be included, because it describes the
        environment.
    store
        The store that contains the artifacts from which the model was built.
    """
    job, candidate = provenance.job, provenance.candidate
    recipe = canonical_json(job.workload.recipe_named(candidate.recipe).model_dump(mode="json")).encode("ascii")
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "workload": job.workload.name,
                    "recipe": candidate.recipe,
                    "runtime": candidate.runtime,
                    "night": provenance.night.isoformat(),
                },
                "internalParameters": {"sourceDigest": candidate.source_digest},
                "resolvedDependencies": [
                    _material("checkpoint", job.checkpoint, store),
                    _material("data", job.dataset, store),
                    _material("quantized", candidate, store),
                    {
                        "name": "recipe",
                        "digest": {"sha256": hashlib.sha256(recipe).hexdigest()},
                        "content": base64.b64encode(recipe).decode("ascii"),
                        "mediaType": "application/json",
                    },
                    {"name": "environment", "uri": SBOM, "digest": {"sha256": files[SBOM]}},
                ],
            },
            "runDetails": {
                "builder": {"id": str(PackageURL("pypi", name="nightquant", version=_VERSION))},
                "metadata": {"invocationId": provenance.run_id},
            },
        },
    }


def sbom_of(name: str, version: str, packages: Iterable[Component], python: str) -> str:
    """Return the bill of materials as CycloneDX 1.6 JSON (cyclonedx.org/docs/1.6/json).

    Parameters
    ----------
    name, version
        Name and version of the bundle that the document describes.
    packages
        The installed distributions.
    python
        Version of Python.
    """
    bundle = Component(name=name, version=version, type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref="bundle")
    interpreter = Component(name="python", version=python, type=ComponentType.PLATFORM, bom_ref="python")
    bom = Bom(components=[interpreter, *packages], serial_number=uuid5(NAMESPACE_URL, f"{name}/{version}"))
    bom.metadata.component = bundle
    bom.metadata.timestamp = None  # type: ignore[assignment]  # identical inputs must give identical bytes
    builder = Component(name="nightquant", version=_VERSION, type=ComponentType.APPLICATION, bom_ref="builder")
    bom.metadata.tools.components.add(builder)
    bom.register_dependency(bundle, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _distribution(name: str, version: str, licence: License | None) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    return Component(name=name, version=version, bom_ref=str(purl), purl=purl, licenses=[licence] if licence else ())


def _material(name: str, artifact: ArtifactRef, store: ArtifactStore) -> Json:
    """Describe an artifact by the SHA-256 of its ``artifact.json``, which lists the files' digests."""
    digest = store.manifest_digest(artifact.kind, artifact.digest)
    return {"name": name, "uri": f"artifacts/{artifact.kind}/{artifact.digest}", "digest": {"sha256": digest}}


def installed_packages(path: Sequence[str] | None = None) -> tuple[Component, ...]:
    """Return importable distributions, sorted by name; if several have the same name, return only the first.

    Parameters
    ----------
    path
        Folders to search; None means this process's search path.
    """
    packages: dict[str, Component] = {}
    for installed in distributions() if path is None else distributions(path=list(path)):
        # An interrupted installation leaves a distribution without a name; ``importlib_metadata`` then raises an error.
        # On import, ``importlib_metadata`` replaces the standard library's finder.
        if installed.read_text("METADATA") is None and installed.read_text("PKG-INFO") is None:
            continue
        name = re.sub(r"[-_.]+", "-", _first(installed, "Name")).lower()
        if name and name not in packages:
            packages[name] = _distribution(name, installed.version, _licence(installed))
    return tuple(packages[name] for name in sorted(packages))


def _licence(distribution: Distribution) -> License | None:
    """Return the SPDX expression; else the classifiers' licences; else the first line of the licence's text."""
    if expression := _first(distribution, "License-Expression"):
        return LicenseExpression(expression)
    classifiers = [line for line in distribution.metadata.get_all("Classifier") or () if line.startswith("License ::")]
    first = _first(distribution, "License").strip().partition("\n")[0]
    named = ", ".join(line.rpartition(" :: ")[2] for line in classifiers) or ("" if first == "UNKNOWN" else first[:100])
    return DisjunctiveLicense(name=named) if named else None


def _first(distribution: Distribution, field: str) -> str:
    return str(next(iter(distribution.metadata.get_all(field) or ()), ""))

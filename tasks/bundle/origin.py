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
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from urllib.parse import quote

from storage.artifacts import ArtifactStore
from storage.digest import canonical_json
from tasks.bundle.manifest import Json, Provenance
from tasks.machine import installed_version
from tasks.refs import ArtifactRef

PROVENANCE, SBOM = "provenance.intoto.json", "sbom.cdx.json"
BUILD_TYPE = "urn:nightquant:night:1"


@dataclass(frozen=True, order=True)
class Package:
    """A Python distribution with a normalized name.

    ``licence`` is ``""`` if the distribution does not state a licence. ``expression`` is true if the
    licence is an SPDX expression, and false if the licence is free text.
    """

    name: str
    version: str
    licence: str = ""
    expression: bool = False

    @property
    def purl(self) -> str:
        """Package URL of the distribution (github.com/package-url/purl-spec)."""
        return f"pkg:pypi/{self.name}@{quote(self.version, safe='.-_')}"


_BUILDER = Package("nightquant", installed_version("nightquant") or "unknown", "Apache-2.0", expression=True)


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
            "runDetails": {"builder": {"id": _BUILDER.purl}, "metadata": {"invocationId": provenance.run_id}},
        },
    }


def sbom_of(name: str, version: str, packages: Iterable[Package], python: str) -> Json:
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
    interpreter = {"type": "platform", "bom-ref": "python", "name": "python", "version": python}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [_component(_BUILDER) | {"type": "application", "bom-ref": "builder"}]},
            "component": {"type": "machine-learning-model", "bom-ref": "bundle", "name": name, "version": version},
        },
        "components": [interpreter, *map(_component, packages)],
    }


def _component(package: Package) -> Json:
    described: Json = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
    }
    if package.licence:
        named = {"expression": package.licence} if package.expression else {"license": {"name": package.licence}}
        described["licenses"] = [named]
    return described


def _material(name: str, artifact: ArtifactRef, store: ArtifactStore) -> Json:
    """Describe an artifact by the SHA-256 of its ``artifact.json``, which lists the files' digests."""
    digest = store.manifest_digest(artifact.kind, artifact.digest)
    return {"name": name, "uri": f"artifacts/{artifact.kind}/{artifact.digest}", "digest": {"sha256": digest}}


def installed_packages(path: Sequence[str] | None = None) -> tuple[Package, ...]:
    """Return importable distributions, sorted by name; if several have the same name, return only the first.

    Parameters
    ----------
    path
        Folders to search; None means this process's search path.
    """
    packages: dict[str, Package] = {}
    for installed in distributions() if path is None else distributions(path=list(path)):
        # An interrupted installation leaves a distribution without a name; ``importlib_metadata`` then raises an error.
        # On import, ``importlib_metadata`` replaces the standard library's finder.
        if installed.read_text("METADATA") is None and installed.read_text("PKG-INFO") is None:
            continue
        if name := re.sub(r"[-_.]+", "-", _first(installed, "Name")).lower():
            expression = _first(installed, "License-Expression")
            package = Package(name, installed.version, expression or _phrase(installed), bool(expression))
            packages.setdefault(name, package)
    return tuple(sorted(packages.values()))


def _phrase(distribution: Distribution) -> str:
    """Return the licence from the classifiers, or the licence text's first line if no classifier names a licence."""
    classifiers = [line for line in distribution.metadata.get_all("Classifier") or () if line.startswith("License ::")]
    first = _first(distribution, "License").strip().partition("\n")[0]
    named = [line.rpartition(" :: ")[2] for line in classifiers]
    return ", ".join(named) or ("" if first == "UNKNOWN" else first[:100])


def _first(distribution: Distribution, field: str) -> str:
    return str(next(iter(distribution.metadata.get_all(field) or ()), ""))

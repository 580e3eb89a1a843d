"""Where a bundle comes from, for tools: ``provenance.intoto.json`` and ``sbom.cdx.json``.

The first is an in-toto statement (in-toto.io/Statement/v1) with a SLSA provenance predicate (slsa.dev/provenance/v1),
the second a CycloneDX 1.6 bill of materials of what was installed where the bundle was packaged. Neither holds a time:
the same inputs give the same bytes.
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
    """A distribution: its normalized name, and the licence that it names ("" if none).

    ``expression`` is whether that is an SPDX expression, as newer metadata have it, and not a phrase.
    """

    name: str
    version: str
    licence: str = ""
    expression: bool = False

    @property
    def purl(self) -> str:
        """Its package URL (github.com/package-url/purl-spec)."""
        return f"pkg:pypi/{self.name}@{quote(self.version, safe='.-_')}"


_BUILDER = Package("nightquant", installed_version("nightquant") or "unknown", "Apache-2.0", expression=True)


def provenance_of(made: Provenance, files: Mapping[str, str], store: ArtifactStore) -> Json:
    """The in-toto statement about a bundle.

    Parameters
    ----------
    files
        SHA-256 of every other file of the bundle, by name; `SBOM` is among them and stands for the environment.
    store
        Holds the artifacts that the model was made from.
    """
    job, candidate = made.job, made.candidate
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
                    "night": made.night.isoformat(),
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
            "runDetails": {"builder": {"id": _BUILDER.purl}, "metadata": {"invocationId": made.run_id}},
        },
    }


def sbom_of(name: str, version: str, packages: Iterable[Package], python: str) -> Json:
    """The bill of materials as CycloneDX 1.6 JSON (cyclonedx.org/docs/1.6/json).

    Parameters
    ----------
    name, version
        Of the bundle, which is the component that all is about.
    packages
        What was installed.
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
    """An artifact, by the SHA-256 of its ``artifact.json``, which lists the digests of its files."""
    digest = store.manifest_digest(artifact.kind, artifact.digest)
    return {"name": name, "uri": f"artifacts/{artifact.kind}/{artifact.digest}", "digest": {"sha256": digest}}


def installed_packages(path: Sequence[str] | None = None) -> tuple[Package, ...]:
    """Every distribution that Python would import from, sorted by name; of two of one name the one that is found first.

    Parameters
    ----------
    path
        Folders to look in; None: those of this process.
    """
    found: dict[str, Package] = {}
    for each in distributions() if path is None else distributions(path=list(path)):
        # A folder that an interrupted installation left has no name; importlib_metadata, which takes the place of the
        # standard library's finder once something imports it, raises there.
        if each.read_text("METADATA") is None and each.read_text("PKG-INFO") is None:
            continue
        if name := re.sub(r"[-_.]+", "-", _first(each, "Name")).lower():
            expression = _first(each, "License-Expression")
            found.setdefault(name, Package(name, each.version, expression or _phrase(each), bool(expression)))
    return tuple(sorted(found.values()))


def _phrase(distribution: Distribution) -> str:
    """The licence as classifiers name it, or the first line of its text."""
    classifiers = [line for line in distribution.metadata.get_all("Classifier") or () if line.startswith("License ::")]
    first = _first(distribution, "License").strip().partition("\n")[0]
    named = [line.rpartition(" :: ")[2] for line in classifiers]
    return ", ".join(named) or ("" if first == "UNKNOWN" else first[:100])


def _first(distribution: Distribution, field: str) -> str:
    return str(next(iter(distribution.metadata.get_all(field) or ()), ""))

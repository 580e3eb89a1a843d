"""Facts about candidates (evaluations and proofs, but never measurements), which later runs look up in the store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import digest_of
from tasks.environment.machine import installed_version, this_machine
from tasks.values.refs import CandidateRef, Frozen

T = TypeVar("T", bound=Frozen)
_FILE = "fact.json"
# Prefixes of environment variables that select the kernels of torch, oneDNN, MKL and nightquant.
_SELECTING = ("ATEN_", "DNNL_", "MKL_", "NIGHTQUANT_ISA", "ONEDNN_")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """Location of a fact (a `model` instance) in the store, derived from `conditions` and the `candidate`'s files."""

    kind: str
    model: type[T]
    candidate: CandidateRef
    conditions: Mapping[str, object]

    def find(self, store: ArtifactStore) -> T | None:
        """Return the fact, or None if the store lacks it; raise `StoreError` if the artifact is damaged."""
        folder = store.find(self.kind, artifact_digest(self.kind, self._made_from(store)))
        if folder is None:
            return None
        return self.model.model_validate_json((folder / _FILE).read_text(encoding="utf-8"))

    def keep(self, value: T, store: ArtifactStore) -> None:
        """Store the fact; raise `StoreError` if the store is not writable."""
        made_from = self._made_from(store)
        with store.create(self.kind, artifact_digest(self.kind, made_from), made_from) as folder:
            (folder / _FILE).write_text(value.model_dump_json(), encoding="utf-8")

    def _made_from(self, store: ArtifactStore) -> dict[str, object]:
        # Not every runtime builds reproducible files, so a candidate that was built again may have other files.
        artifacts = {self.candidate.kind: self.candidate.digest, **self.candidate.shared}
        files = {kind: store.manifest_digest(kind, digest) for kind, digest in artifacts.items()}
        # Hash the conditions, because they may contain other artifacts' digests. Otherwise, `storage.gc` would keep
        # the fact while any of these digests is reachable, even if the candidate's digest is not.
        return {"candidate": self.candidate.digest, "conditions": digest_of({**self.conditions, "files": files})}


def host_conditions(*distributions: str) -> dict[str, object]:
    """Return the properties of this host that affect a candidate's outputs, and the versions of `distributions`."""
    machine = this_machine()
    return {
        "machine": machine.digest,
        "environment": machine.environment,
        "versions": {name: installed_version(name) for name in distributions},
        "variables": {name: value for name, value in os.environ.items() if name.startswith(_SELECTING)},
    }

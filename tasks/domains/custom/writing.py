"""Writing prepared data to the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch

from storage.artifacts import ArtifactStore, artifact_digest
from tasks.domains.custom.samples import DESCRIPTION, KIND, REFERENCE, ROWS, Batch, Description, write_batches
from tasks.refs import DatasetRef
from tasks.sources import code_digest

Split = Sequence[Batch]


def find_or_write(
    store: ArtifactStore,
    made_from: Mapping[str, object],
    make: Callable[[], tuple[Description, Mapping[str, Split]]],
) -> DatasetRef:
    """The data set that `made_from` and the code decide: from the store, or made and written."""
    decided = {**made_from, "torch": torch.__version__, "preparation": code_digest(make.__module__)}
    digest = artifact_digest(KIND, decided)
    found = store.find(KIND, digest)
    if found is not None:
        return DatasetRef.model_validate_json((found / REFERENCE).read_text(encoding="utf-8"))
    description, splits = make()
    with store.create(KIND, digest, decided) as folder:
        for split, batches in splits.items():
            named = {f"{index:06d}.": batch for index, batch in enumerate(batches)}
            write_batches(folder / f"{split}.safetensors", named if description.collated else {"": batches[0]})
        first = splits["test"][0]
        calibration = (folder / "calibration.safetensors").read_bytes()
        dataset = DatasetRef(
            kind=KIND,
            digest=digest,
            splits={split: sum(map(len, batches)) for split, batches in splits.items() if split != ROWS},
            classes=len(description.classes),
            sample_shape=tuple(next(iter(first.inputs.values())).shape[1:]),
            calibration_digest=hashlib.sha256(calibration).hexdigest(),
        )
        for name, document in ((DESCRIPTION, description), (REFERENCE, dataset)):
            (folder / name).write_text(document.model_dump_json(indent=1), encoding="utf-8")
    return dataset

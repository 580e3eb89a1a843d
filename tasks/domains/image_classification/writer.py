"""Writing an ``images`` artifact sample by sample, no picture twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage.artifacts import artifact_digest
from storage.digest import digest_of
from storage.errors import InputError
from tasks.domains.image_classification.images import DESCRIPTION, KIND, Description, Pixels, Split
from tasks.refs import DatasetRef

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore

#: In the order in which splits are filled. A picture that occurs twice stays in the first of them, so that none is both
#: measured on and trained on.
FILL_ORDER: tuple[Split, ...] = ("test", "valid", "calibration", "train")
REFERENCE = "dataset.json"


class ImageWriter:
    """Appends samples of `shape`, (3, H, W), to the splits in `folder`; `stack` closes the files."""

    def __init__(self, folder: Path, shape: tuple[int, int, int], stack: ExitStack) -> None:
        self.shape = shape
        self.labels: dict[Split, list[int]] = {split: [] for split in FILL_ORDER}
        self.calibration: list[str] = []
        self.duplicates = 0
        self._folder = folder
        self._seen: set[str] = set()
        self._images = {split: stack.enter_context((folder / f"{split}.images.npy").open("wb")) for split in FILL_ORDER}
        self._write_headers()

    def add(self, split: Split, pixels: Pixels, label: int) -> bool:
        """Append a sample unless the same pixels are in any split already; tell whether it was new.

        Raises
        ------
        ValueError
            The pixels are not uint8 of this data set's shape.
        """
        if pixels.shape != self.shape or pixels.dtype != np.uint8:
            raise ValueError(f"expected uint8 {self.shape}, got {pixels.dtype} {pixels.shape}")
        content = np.ascontiguousarray(pixels).data
        digest = hashlib.sha256(content).hexdigest()
        if digest in self._seen:
            self.duplicates += 1
            return False
        self._seen.add(digest)
        self._images[split].write(content)
        self.labels[split].append(label)
        if split == "calibration":
            self.calibration.append(digest)
        return True

    def finish(self) -> None:
        """Write the final number of images into the headers, and the labels into files of their own."""
        self._write_headers()
        for split, labels in self.labels.items():
            np.save(self._folder / f"{split}.labels.npy", np.array(labels, dtype="<i8"))

    def _write_headers(self) -> None:
        # NumPy pads a header for growth along the first axis, so that the final one fits over the first one.
        for split, file in self._images.items():
            header = {"descr": "|u1", "fortran_order": False, "shape": (len(self.labels[split]), *self.shape)}
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, header)


def find_or_write(
    store: ArtifactStore,
    made_from: Mapping[str, object],
    shape: tuple[int, int, int],
    fill: Callable[[ImageWriter], Description],
) -> DatasetRef:
    """Find the data set that `made_from` decides, or write it.

    `fill` adds every sample to the writer, and returns what is known of the data set but the number of duplicates.

    Raises
    ------
    InputError
        A split came out empty.
    """
    digest = artifact_digest(KIND, made_from)
    found = store.find(KIND, digest)
    if found is not None:
        return DatasetRef.model_validate_json((found / REFERENCE).read_text(encoding="utf-8"))
    with store.create(KIND, digest, made_from) as folder:
        with ExitStack() as stack:
            writer = ImageWriter(folder, shape, stack)
            description = fill(writer)
            writer.finish()
        counts: dict[str, int] = {split: len(labels) for split, labels in writer.labels.items()}
        if empty := [split for split, count in counts.items() if not count]:
            raise InputError(
                f"The data set leaves no image for: {', '.join(empty)} (found: {counts}).",
                hint="Provide more images, or ask for smaller other splits in [data].",
            )
        dataset = DatasetRef(
            kind=KIND,
            digest=digest,
            splits=counts,
            classes=len(description.classes),
            sample_shape=shape,
            calibration_digest=digest_of({"samples": writer.calibration}),
            skipped=len(description.skipped),
        )
        description = description.model_copy(update={"duplicates": writer.duplicates})
        for name, document in ((DESCRIPTION, description), (REFERENCE, dataset)):
            (folder / name).write_text(document.model_dump_json(indent=1), encoding="utf-8")
    return dataset

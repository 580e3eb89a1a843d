"""Writing an ``images`` artifact sample by sample, whatever they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from storage.artifacts import ArtifactStore
from storage.digest import digest_of
from storage.errors import InputError
from tasks.domains.image_classification.images import Description
from tasks.domains.image_classification.splits import FILL_ORDER, Split
from tasks.refs import DatasetRef

KIND = "images"
REFERENCE = "dataset.json"
Pixels = npt.NDArray[np.uint8]


@dataclass
class SplitWriter:
    """Appends samples to one split's two files; the number of samples need not be known ahead."""

    images: IO[bytes]
    labels: IO[bytes]
    shape: tuple[int, ...]
    digests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._write_headers()

    def add(self, pixels: Pixels, label: int, digest: str) -> None:
        """Append one sample: uint8 [3, H, W] and its class."""
        self.images.write(np.ascontiguousarray(pixels).data)
        self.labels.write(np.int64(label).tobytes())
        self.digests.append(digest)

    def finish(self) -> None:
        """Put the final number of samples into the headers."""
        self.images.seek(0)
        self.labels.seek(0)
        self._write_headers()

    def _write_headers(self) -> None:
        # NumPy pads a header for growth along the first axis, so that the later one fits over the earlier one.
        count = len(self.digests)
        for stream, dtype, shape in ((self.images, "|u1", (count, *self.shape)), (self.labels, "<i8", (count,))):
            header = {"descr": dtype, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)


class ImageWriter:
    """Takes samples for the four splits and refuses one that is already there.

    Parameters
    ----------
    folder
        The artifact's folder.
    shape
        (3, H, W) of every sample.
    """

    def __init__(self, folder: Path, shape: tuple[int, int, int], files: ExitStack) -> None:
        self.shape = shape
        self.duplicates = 0
        self._seen: set[str] = set()
        self._splits = {
            split: SplitWriter(
                files.enter_context((folder / f"{split}.images.npy").open("w+b")),
                files.enter_context((folder / f"{split}.labels.npy").open("w+b")),
                shape,
            )
            for split in FILL_ORDER
        }

    def add(self, split: Split, pixels: Pixels, label: int) -> bool:
        """Append a sample unless the same pixels were added before, to whichever split; tell whether it was new.

        Raises
        ------
        ValueError
            The pixels are not uint8 of this data set's shape.
        """
        if pixels.shape != self.shape or pixels.dtype != np.uint8:
            raise ValueError(f"expected uint8 {self.shape}, got {pixels.dtype} {pixels.shape}")
        digest = hashlib.sha256(np.ascontiguousarray(pixels).data).hexdigest()
        if digest in self._seen:
            self.duplicates += 1
            return False
        self._seen.add(digest)
        self._splits[split].add(pixels, label, digest)
        return True

    def counts(self) -> dict[str, int]:
        """Number of samples per split."""
        return {split: len(writer.digests) for split, writer in self._splits.items()}

    def calibration_digest(self) -> str:
        """SHA-256 of the list of the calibration samples' own digests."""
        return digest_of({"samples": self._splits["calibration"].digests})

    def finish(self) -> None:
        """Complete the files."""
        for writer in self._splits.values():
            writer.finish()


@contextmanager
def image_writer(folder: Path, shape: tuple[int, int, int]) -> Iterator[ImageWriter]:
    """Open the files of the four splits in `folder`; complete and close them when the block ends well."""
    with ExitStack() as files:
        writer = ImageWriter(folder, shape, files)
        yield writer
        writer.finish()


def publish(
    store: ArtifactStore,
    digest: str,
    made_from: Mapping[str, Any],
    description: Description,
    shape: tuple[int, int, int],
    fill: Callable[[ImageWriter], Sequence[str]],
) -> DatasetRef:
    """Make a data set with what `fill` adds to the writer, and publish it.

    Parameters
    ----------
    fill
        Adds every sample, and gives the names of those that could not be read.

    Raises
    ------
    InputError
        A split came out empty.
    """
    with store.create(KIND, digest, made_from) as folder:
        with image_writer(folder, shape) as writer:
            skipped = fill(writer)
        counts = writer.counts()
        empty = [split for split, count in counts.items() if not count]
        if empty:
            raise InputError(
                f"The data set leaves no image for: {', '.join(empty)} (found: {counts}).",
                hint="Give more images, or ask for smaller other splits in [data].",
            )
        dataset = DatasetRef(
            kind=KIND,
            digest=digest,
            splits=counts,
            classes=len(description.classes),
            sample_shape=shape,
            calibration_digest=writer.calibration_digest(),
            skipped=len(skipped),
        )
        description.write(folder, skipped=list(skipped), duplicates=writer.duplicates)
        (folder / REFERENCE).write_text(dataset.model_dump_json(indent=1), encoding="utf-8")
    return dataset


def find_published(store: ArtifactStore, digest: str) -> DatasetRef | None:
    """The data set of that digest, or None where it was not made yet."""
    folder = store.find(KIND, digest)
    return None if folder is None else DatasetRef.model_validate_json((folder / REFERENCE).read_text(encoding="utf-8"))

"""Sets of pictures as samples, no picture twice; and pictures that exist already shared out among the splits."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import PIL
import torchvision
from PIL import Image

from storage.errors import InputError
from storage.humanize import plural
from tasks.data.pictures import Pixels, Preprocessing, UnreadableError
from tasks.data.samples import TARGET, ColumnWriter, Description, find_or_write

if TYPE_CHECKING:
    from storage.artifacts import ArtifactStore
    from tasks.data.sections import Pictures
    from tasks.job import Progress, Workspace
    from tasks.refs import DatasetRef

Split = Literal["train", "calibration", "valid", "test"]
COLUMN = "images"

# In the order in which splits are filled. A picture that occurs twice stays in the first of them, so that none is both
# measured on and trained on.
FILL_ORDER: tuple[Split, ...] = ("test", "valid", "calibration", "train")
_NAMED = 5
_MUCH_LARGER = 2  # times; a picture that is enlarged so much is blurred
# Not in the digest: where the pictures lie, and the settings that `Preprocessing` results from.
_NOT_CONTENT = {"uri", "sha256", "max_bytes", "root", "download", "transforms", "image_size"}

Quotas = Mapping[Split, int | None]


class PictureWriter:
    """Appends pictures of `shape`, (3, H, W), to the splits in `folder`; `stack` closes the files."""

    def __init__(self, folder: Path, shape: tuple[int, int, int], stack: ExitStack) -> None:
        self.shape = shape
        self.labels: dict[Split, list[int]] = {split: [] for split in FILL_ORDER}
        # Pictures left out because the same pixels are in a split already: by that split, and the one they were for.
        self.repeated: Counter[tuple[Split, Split]] = Counter()
        self._folder = folder
        self._split_of: dict[bytes, Split] = {}
        self._images = {
            split: stack.enter_context(ColumnWriter(folder, split, COLUMN, "|u1", shape)) for split in FILL_ORDER
        }

    def add(self, split: Split, pixels: Pixels, label: int) -> bool:
        """Append a picture unless the same pixels are in any split already; return whether it was new.

        Raises
        ------
        ValueError
            The pixels are not uint8 of this data set's shape.
        """
        if pixels.shape != self.shape or pixels.dtype != np.uint8:
            raise ValueError(f"expected uint8 {self.shape}, got {pixels.dtype} {pixels.shape}")
        digest = hashlib.sha256(np.ascontiguousarray(pixels).data).digest()
        if digest in self._split_of:
            self.repeated[self._split_of[digest], split] += 1
            return False
        self._split_of[digest] = split
        self._images[split].append(pixels[None])
        self.labels[split].append(label)
        return True

    def notes(self) -> tuple[str, ...]:
        """Say how many pictures for other splits were left out because they are test pictures."""
        count = sum(count for (kept, wanted), count in self.repeated.items() if kept == "test" != wanted)
        were = "was left out because it is" if count == 1 else "were left out because they are"
        return (f"{plural(count, 'training picture')} {were} in the test split too",) if count else ()

    def finish(self, described: Description) -> Description:
        """Write the labels, and complete what is known of the data set.

        Raises
        ------
        InputError
            A split came out empty.
        """
        counts: dict[str, int] = {split: len(labels) for split, labels in self.labels.items()}
        if empty := [split for split, count in counts.items() if not count]:
            why = "; ".join([f"found: {counts}", *self.notes()])
            raise InputError(
                f"The data set leaves no image for: {', '.join(empty)} ({why}).",
                hint="Provide more images, or ask for smaller other splits in [data].",
            )
        for split, labels in self.labels.items():
            np.save(self._folder / f"{split}.{TARGET}.npy", np.array(labels, dtype="<i8"))
        changes = {"splits": counts, "inputs": (COLUMN,), "sample_shape": self.shape}
        return described.model_copy(update=changes | {"duplicates": self.repeated.total()})


def find_or_draw(
    store: ArtifactStore,
    made_from: Mapping[str, object],
    shape: tuple[int, int, int],
    fill: Callable[[PictureWriter], Description],
) -> DatasetRef:
    """Find the data set that `made_from` decides, or let `fill` add every picture and describe what it knows."""

    def write(folder: Path) -> Description:
        with ExitStack() as stack:
            writer = PictureWriter(folder, shape, stack)
            return writer.finish(fill(writer))

    return find_or_write(store, made_from, write)


@dataclass(frozen=True)
class Part:
    """Pictures that one or several splits are cut from.

    ``read(i)`` returns the i-th picture or raises `UnreadableError`. ``quotas`` are filled in order with pictures that
    can be used and are new; None takes all that are left.
    """

    names: Sequence[str]
    labels: Sequence[int]
    read: Callable[[int], Image.Image]
    quotas: Quotas


def training_quotas(size: int, shares: Mapping[Split, float], calibration: int) -> Quotas:
    """Cut up `size` training pictures: a share for each split without a part of its own, the rest to train on."""
    return {
        **{split: max(1, round(share * size)) for split, share in shares.items()},
        "calibration": calibration,
        "train": None,
    }


def prepare_pictures(
    data: Pictures,
    geometry: Preprocessing,
    content: Mapping[str, object],
    open_parts: Callable[[], tuple[Sequence[str], Sequence[Part]]],
    workspace: Workspace,
) -> DatasetRef:
    """Find the data set, or write what is in its parts.

    `content` is what identifies the pictures, and the code that reads them; `open_parts` returns the names of the
    classes, and the parts in the order in which they are read.

    Raises
    ------
    InputError
        Too many pictures cannot be read.
    """
    made_from = {
        **content,
        "data": data.model_dump(mode="json", exclude=_NOT_CONTENT),
        "preprocessing": asdict(geometry),
        "libraries": {module.__name__: module.__version__ for module in (PIL, torchvision)},
    }

    def fill(writer: PictureWriter) -> Description:
        classes, parts = open_parts()
        sides, unreadable = _add_all(writer, parts, geometry, data.seed, workspace.progress)
        total = sum(len(part.names) for part in parts)
        allowed: float = getattr(data, "max_corrupt_share", 0)
        if len(unreadable) > allowed * total:
            named = [f"{name} ({reason})" for name, reason in sorted(unreadable.items())]
            shown = "; ".join(named if len(named) <= _NAMED else [*named[:_NAMED], f"and {len(named) - _NAMED} more"])
            raise InputError(
                f"{len(named)} of {total} images cannot be read, more than the allowed {allowed:.1%}: {shown}.",
                hint="Repair or remove them, or raise data.max_corrupt_share.",
            )
        return Description(
            splits={},
            classes=tuple(classes),
            mean=geometry.mean,
            std=geometry.std,
            skipped=tuple(sorted(unreadable)),
            notes=_enlarged(sides, geometry.resize) + writer.notes(),
        )

    return find_or_draw(workspace.store, made_from, (3, geometry.crop, geometry.crop), fill)


def _add_all(
    writer: PictureWriter, parts: Sequence[Part], geometry: Preprocessing, seed: int, progress: Progress
) -> tuple[list[int], dict[str, str]]:
    """Add every part's pictures to its splits.

    Returns the pictures' shorter sides in pixels, and the names of those that cannot be read, with the reasons.
    """
    total, done = sum(len(part.names) for part in parts), 0
    sides: list[int] = []
    unreadable: dict[str, str] = {}
    for part in parts:
        order = iter(stratified_order(part.labels, seed).tolist())
        for split, quota in part.quotas.items():
            added = 0
            for index in order:
                done += 1
                progress(done, total, "images")
                try:
                    picture = part.read(index)
                    added += writer.add(split, geometry.pixels(picture), part.labels[index])
                    sides.append(min(picture.size))
                except UnreadableError as error:
                    unreadable[part.names[index]] = str(error)
                if added == quota:
                    break
    progress(total, total, "images")
    return sides, unreadable


def _enlarged(sides: Sequence[int], resize: int) -> tuple[str, ...]:
    """Note a median picture that becomes much larger: its size is rarely the one that the weights were trained with."""
    median = statistics.median_low(sides) if sides else resize
    if resize < _MUCH_LARGER * median:
        return ()
    return (
        f"the median picture is enlarged {resize / median:.3g} times, from {median} to {resize} pixels; "
        "check data.image_size against the size that the weights were trained with",
    )


def stratified_order(labels: Sequence[int], seed: int) -> npt.NDArray[np.int64]:
    """Order samples so that every stretch of them holds the classes in nearly their proportion.

    Within a class the order is random; the k-th of a class's n samples takes a random place in the k-th of n equal
    parts of the whole. Splits may then be cut off one after another, even where some samples turn out to be unusable.
    Gives a permutation of 0…N-1, int64 [N], the same for equal seeds.
    """
    rng = np.random.default_rng(seed)
    classes = np.asarray(labels, dtype=np.int64)
    place = np.empty(len(classes), dtype=np.float64)
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(classes == label))
        place[members] = (np.arange(len(members)) + rng.random(len(members))) / len(members)
    return np.argsort(place, kind="stable")

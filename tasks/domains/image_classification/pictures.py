"""Data sets of pictures that already exist: shared out among the splits while they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import PIL
import torchvision
from PIL import Image

from storage.errors import InputError
from tasks.domains.image_classification.images import Description, Split
from tasks.domains.image_classification.sections import ImageFolder, TorchvisionDataset
from tasks.domains.image_classification.transforms import Preprocessing, UnreadableError
from tasks.domains.image_classification.writer import ImageWriter, find_or_write

if TYPE_CHECKING:
    from tasks.job import Progress, Workspace
    from tasks.refs import DatasetRef

_PROGRESS_EVERY = 64
_NAMED = 5
# Not in the digest: where the pictures lie, and the settings that `Preprocessing` results from.
_NOT_CONTENT = {"uri", "sha256", "max_bytes", "root", "download", "transforms", "image_size"}

Quotas = Mapping[Split, int | None]


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
    data: ImageFolder | TorchvisionDataset,
    geometry: Preprocessing,
    content: Mapping[str, object],
    open_parts: Callable[[], tuple[Sequence[str], Sequence[Part]]],
    workspace: Workspace,
) -> DatasetRef:
    """Find the data set, or write what is in its parts.

    Parameters
    ----------
    content
        What identifies the pictures, and the code that reads them.
    open_parts
        Returns the names of the classes, and the parts in the order in which they are read.

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

    def fill(writer: ImageWriter) -> Description:
        classes, parts = open_parts()
        unreadable = _add_all(writer, parts, geometry, data.seed, workspace.progress)
        total = sum(len(part.names) for part in parts)
        allowed = data.max_corrupt_share if isinstance(data, ImageFolder) else 0
        if len(unreadable) > allowed * total:
            named = [f"{name} ({reason})" for name, reason in sorted(unreadable.items())]
            shown = "; ".join(named if len(named) <= _NAMED else [*named[:_NAMED], f"and {len(named) - _NAMED} more"])
            raise InputError(
                f"{len(named)} of {total} images cannot be read, more than the allowed {allowed:.1%}: {shown}.",
                hint="Repair or remove them, or raise data.max_corrupt_share.",
            )
        skipped = tuple(sorted(unreadable))
        return Description(classes=tuple(classes), mean=geometry.mean, std=geometry.std, skipped=skipped)

    return find_or_write(workspace.store, made_from, (3, geometry.crop, geometry.crop), fill)


def _add_all(
    writer: ImageWriter, parts: Sequence[Part], geometry: Preprocessing, seed: int, progress: Progress
) -> dict[str, str]:
    """Add every part's pictures to its splits; return the names of those that cannot be read, with the reasons."""
    total = sum(len(part.names) for part in parts)
    unreadable: dict[str, str] = {}
    done = 0
    for part in parts:
        order = iter(stratified_order(part.labels, seed).tolist())
        for split, quota in part.quotas.items():
            added = 0
            for index in order:
                done += 1
                if done % _PROGRESS_EVERY == 0:
                    progress(done, total, "images")
                try:
                    added += writer.add(split, geometry.pixels(part.read(index)), part.labels[index])
                except UnreadableError as error:
                    unreadable[part.names[index]] = str(error)
                if added == quota:
                    break
    progress(total, total, "images")
    return unreadable


def stratified_order(labels: Sequence[int], seed: int) -> npt.NDArray[np.int64]:
    """Order samples so that every stretch of them holds the classes in nearly their proportion.

    Within a class the order is random; the k-th of a class's n samples takes a random place in the k-th of n equal
    parts of the whole. Splits may then be cut off one after another, even where some samples turn out to be unusable.

    Returns
    -------
    int64 [N]
        A permutation of 0…N-1, the same for equal seeds.
    """
    rng = np.random.default_rng(seed)
    classes = np.asarray(labels, dtype=np.int64)
    place = np.empty(len(classes), dtype=np.float64)
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(classes == label))
        place[members] = (np.arange(len(members)) + rng.random(len(members))) / len(members)
    return np.argsort(place, kind="stable")

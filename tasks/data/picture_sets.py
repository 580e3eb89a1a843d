"""Divide existing images into splits, and read folders and archives that contain one folder per class."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
import torchvision
from PIL import Image

from storage.digest import digest_of, file_digest
from storage.errors import InputError
from storage.errors import shown as as_shown
from tasks.archive import open_source
from tasks.data.labels import absence_note, numbered
from tasks.data.pictures import (
    FORMATS,
    PictureWriter,
    Preprocessing,
    Split,
    UnreadableError,
    deep_values,
    find_or_write_pictures,
    open_image,
)
from tasks.data.samples import Description
from tasks.data.sections import ImageFolder, Pictures
from tasks.job import Progress, Workspace
from tasks.refs import DatasetRef
from tasks.sources import code_digest

_SUFFIXES = frozenset(suffix for suffix, format in Image.registered_extensions().items() if format in FORMATS)
_NOT_CLASSES = frozenset({"__MACOSX"})  # a folder that macOS adds to archives
_SPLITS: dict[str, Split] = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
_NAMED = 5
_MUCH_LARGER = 2  # images that are enlarged to twice their size look blurred
# Keys of ``[data]`` that are omitted from the digest: the images' location, and keys that `Preprocessing` replaces.
_NOT_CONTENT = {"uri", "sha256", "max_bytes", "root", "download", "transforms", "image_size"}

Quotas = Mapping[Split, int | None]
Notes = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A sequence of images that is divided among one or more splits.

    ``read(i)`` returns the i-th image or raises `UnreadableError`. The ``quotas`` are filled in order with readable
    images that are not duplicates. A quota of ``None`` takes all remaining images.
    """

    names: Sequence[str]
    labels: Sequence[int]
    read: Callable[[int], Image.Image]
    quotas: Quotas


def training_quotas(size: int, shares: Mapping[Split, float], calibration: int) -> Quotas:
    """Return quotas that divide `size` training images among ``train``, ``calibration`` and the splits in `shares`."""
    return {
        **{split: max(1, round(share * size)) for split, share in shares.items()},
        "calibration": calibration,
        "train": None,
    }


def prepare_pictures(
    data: Pictures,
    geometry: Preprocessing,
    content: Mapping[str, object],
    open_parts: Callable[[], tuple[Sequence[str], Sequence[Part], Notes]],
    workspace: Workspace,
) -> DatasetRef:
    """Find an image data set in the store, or create it.

    `content` identifies the images and the code that reads them. `open_parts` returns the class names, a sequence of
    `Part` objects, which are read in order, and notes.

    Raises
    ------
    InputError
        Too many images are unreadable.
    """
    made_from = {
        **content,
        "data": data.model_dump(mode="json", exclude=_NOT_CONTENT),
        "preprocessing": asdict(geometry),
        "libraries": {module.__name__: module.__version__ for module in (PIL, torchvision)},
    }

    def fill(writer: PictureWriter) -> Description:
        classes, parts, notes = open_parts()
        sides, unreadable, deepest = _add_all(writer, parts, geometry, data.seed, workspace.progress)
        total = sum(len(part.names) for part in parts)
        allowed: float = getattr(data, "max_corrupt_share", 0)
        if len(unreadable) > allowed * total:
            reasons = [f"{name} ({reason})" for name, reason in sorted(unreadable.items())]
            rest = [f"and {len(reasons) - _NAMED} more"] if len(reasons) > _NAMED else []
            listed = "; ".join([*reasons[:_NAMED], *rest])
            raise InputError(
                f"{len(reasons)} of {total} images cannot be read, but the allowed share is {allowed:.1%}. "
                f"Unreadable images: {listed}.",
                hint="Repair or remove these images, or increase data.max_corrupt_share.",
            )
        return Description(
            splits={},
            classes=tuple(classes),
            mean=geometry.mean,
            std=geometry.std,
            skipped=tuple(sorted(unreadable)),
            notes=(*notes, *_depth_note(deepest), *_enlargement_note(sides, geometry.resize), *writer.notes()),
        )

    return find_or_write_pictures(workspace.store, made_from, (3, geometry.crop, geometry.crop), fill)


def _add_all(
    writer: PictureWriter, parts: Sequence[Part], geometry: Preprocessing, seed: int, progress: Progress
) -> tuple[list[int], dict[str, str], int]:
    """Add each part's images to the splits listed in the part's quotas.

    Return the readable images' shorter sides (in pixels), a dictionary that maps the names of unreadable images to
    error messages, and the largest value in a 16-bit greyscale image.
    """
    total, done = sum(len(part.names) for part in parts), 0
    sides: list[int] = []
    unreadable: dict[str, str] = {}
    deepest = 0
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
                    if (values := deep_values(picture)) is not None:
                        deepest = max(deepest, int(values.max()))
                except UnreadableError as error:
                    unreadable[part.names[index]] = str(error)
                if added == quota:
                    break
    progress(total, total, "images")
    return sides, unreadable, deepest


def _depth_note(deepest: int) -> Notes:
    scaled = f"16-bit images were scaled from 0–65,535 to 0–255; the largest value found is {deepest:,}"
    return (scaled,) if deepest else ()


def _enlargement_note(sides: Sequence[int], resize: int) -> tuple[str, ...]:
    """Return a note if resizing at least doubles the median of the images' shorter sides.

    Weights are rarely trained on enlarged images.
    """
    median = statistics.median_low(sides) if sides else resize
    if resize < _MUCH_LARGER * median:
        return ()
    return (
        f"the median image is enlarged {resize / median:.3g} times, from {median} to {resize} pixels; "
        "compare data.image_size with the image size that the weights were trained on",
    )


def stratified_order(labels: Sequence[int], seed: int) -> npt.NDArray[np.int64]:
    """Return a permutation of 0…N-1, int64 [N], in which all contiguous sections have similar class proportions.

    Within a class, the order is random. The samples of each class are spread evenly over the permutation, so that
    consecutive sections can serve as splits even if some samples are unusable. The same seed produces the same
    permutation.
    """
    rng = np.random.default_rng(seed)
    classes = np.asarray(labels, dtype=np.int64)
    place = np.empty(len(classes), dtype=np.float64)
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(classes == label))
        place[members] = (np.arange(len(members)) + rng.random(len(members))) / len(members)
    return np.argsort(place, kind="stable")


@dataclass(frozen=True)
class Layout:
    """The contents of an image folder: class names, indexed by label, and (file, label) pairs, keyed by split.

    If `root` does not contain split folders, all files are in ``train``. ``notes`` names class folders without images,
    and folders that were left out.
    """

    root: Path
    classes: tuple[str, ...]
    files: dict[Split, list[tuple[Path, int]]]
    notes: Notes = ()


def prepare_image_folder(data: ImageFolder, geometry: Preprocessing, workspace: Workspace) -> DatasetRef:
    """Decode, resize and split the images in a directory or an archive.

    A fraction of the training images replaces a missing ``test`` or ``valid`` folder. Calibration images are always
    taken from the training images.
    """
    downloads = workspace.store.root / "downloads"
    with open_source(
        data.uri, downloads, sha256=data.sha256, max_bytes=data.max_bytes, progress=workspace.progress
    ) as source:

        def find() -> Layout:
            return find_layout(source.path(), as_shown(data.uri), data.classes)

        # Extract an archive only if the store does not contain its data set.
        layout = None if source.sha256 else find()
        content = {"archive": source.sha256, "code": code_digest(__name__)}
        if layout:  # the digest covers file names and contents, so a changed image results in a new data set
            files = [file for part in layout.files.values() for file, _ in part]
            content["files"] = digest_of({str(file.relative_to(layout.root)): file_digest(file) for file in files})
            content["classes"] = digest_of({"names": layout.classes})  # an empty folder is also a class

        def open_parts() -> tuple[Sequence[str], Sequence[Part], Notes]:
            read_layout = layout or find()
            return read_layout.classes, _parts(read_layout, data), read_layout.notes

        return prepare_pictures(data, geometry, content, open_parts, workspace)


def find_layout(folder: Path, shown: str = "", stated: Sequence[str] = ()) -> Layout:
    """Find the classes and files in `folder` or in its only subfolder.

    Many archives contain a single top-level folder. The `stated` names are classes, even if a split has the same name.

    Raises
    ------
    InputError
        Fewer than two classes have images, `stated` lacks a class, or a folder could be a split or a class.
    """
    children = _folders(folder)
    for root in (folder, *children) if len(children) == 1 else (folder,):
        parts, notes = _split_folders(root, shown or str(folder), stated)
        tree = {split: {child.name: pictures_in(child) for child in _folders(part)} for split, part in parts.items()}
        found = {name for by_class in tree.values() for name, files in by_class.items() if files}
        if len(found) > 1:
            # Like torchvision, count class folders without images, because a class number must not depend on them.
            empty = {name for by_class in tree.values() for name in by_class} - found
            classes = numbered(found if stated else found | empty, stated, shown or str(folder))
            files = {
                split: [(file, label) for label, name in enumerate(classes) for file in by_class.get(name, [])]
                for split, by_class in tree.items()
            }
            return Layout(root, classes, files, (*notes, *absence_note(classes, found)))
    raise InputError(
        f"{shown or folder} contains fewer than two folders of images.",
        hint="Arrange images as <class>/<image> or as train/<class>/<image>. You can add the folders test and valid "
        f"next to train. Supported suffixes: {', '.join(sorted(_SUFFIXES))}.",
    )


def _split_folders(root: Path, shown: str, stated: Sequence[str]) -> tuple[dict[Split, Path], Notes]:
    """Return the folder of each split, and notes about other folders; without split folders, `root` is ``train``.

    A folder with the name of a split is a class if `stated` contains its name, or if it contains no class folders while
    other folders contain images.
    """
    children = _folders(root)
    named = [child for child in children if child.name.lower() in _SPLITS and child.name not in stated]
    parts = {_SPLITS[child.name.lower()]: child for child in named}
    others = [child.name for child in children if child not in named and _has_pictures(child)]
    classes = {split: {child.name for child in _folders(part) if _has_pictures(child)} for split, part in parts.items()}
    train = classes.pop("train", set())
    if not named or (others and not train):
        return {"train": root}, ()
    if len(named) == 1 and "train" not in parts:
        return {"train": root}, ()  # the only folder
    if len(parts) < len(named) or "train" not in parts:
        raise InputError(
            f"{shown} contains these split folders: {', '.join(child.name for child in named)}.",
            hint="Use one folder for each split, and name the folders train, test and valid. If the folders are "
            "classes, list all classes in data.classes.",
        )
    if others and not stated and not any(train & held_out for held_out in classes.values()):
        raise InputError(
            f'{shown} contains the folder "{parts["train"].name}", which could be a split or a class, because other '
            f"folders also contain images: {', '.join(others)}.",
            hint=f'If "{parts["train"].name}" is a split, move the other folders elsewhere. If it is a class, list all '
            "classes in data.classes.",
        )
    return parts, ((f"these folders next to train were left out: {', '.join(others)}",) if others else ())


def _folders(folder: Path) -> list[Path]:
    children = (child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    return sorted(child for child in children if child.name not in _NOT_CLASSES)


def pictures_in(folder: Path) -> list[Path]:
    """Return all files with an image suffix in a folder and its subfolders."""
    return sorted(_pictures(folder))


def _has_pictures(folder: Path) -> bool:
    return next(_pictures(folder), None) is not None


def _pictures(folder: Path) -> Iterator[Path]:
    return (
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _parts(layout: Layout, data: ImageFolder) -> list[Part]:
    """Return the parts of a data set, with the training images last.

    Because the training images come last, duplicates of ``test`` or ``valid`` images are not used for training.
    """

    def read(split: Split, index: int) -> Image.Image:
        with layout.files[split][index][0].open("rb") as stream:
            return open_image(stream)

    shares: dict[Split, float] = {"test": data.test_share, "valid": data.valid_share}
    missing = {split: share for split, share in shares.items() if split not in layout.files}
    train = training_quotas(len(layout.files["train"]), missing, data.calibration)
    quotas: dict[Split, Quotas] = {"test": {"test": None}, "valid": {"valid": None}, "train": train}
    return [
        Part(
            names=[str(file.relative_to(layout.root)) for file, _ in layout.files[split]],
            labels=[label for _, label in layout.files[split]],
            read=partial(read, split),
            quotas=quota,
        )
        for split, quota in quotas.items()
        if split in layout.files
    ]

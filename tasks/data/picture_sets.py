"""Divide existing images into splits, and read folders and archives that contain one folder per class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL
import torchvision
from PIL import Image

from storage.digest import digest_of, file_digest
from storage.errors import InputError
from storage.errors import shown as as_shown
from tasks.data.archive import open_source
from tasks.data.pictures import (
    FORMATS,
    PictureWriter,
    Preprocessing,
    Split,
    UnreadableError,
    find_or_write_pictures,
    open_image,
    preprocessing,
)
from tasks.data.samples import Description, absence_note, numbered, shortened
from tasks.data.sections import ImageFolder, Pictures
from tasks.environment.sources import code_digest
from tasks.values.job import Progress, Workspace
from tasks.values.refs import DatasetRef

_SUFFIXES = frozenset(suffix for suffix, format in Image.registered_extensions().items() if format in FORMATS)
_NOT_CLASSES = frozenset({"__MACOSX"})  # a folder that macOS adds to archives
_SPLITS: dict[str, Split] = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
_LOCATION = {"uri", "sha256", "root", "download"}  # keys that are not in the digest
_MOST_UNREADABLE = 0.01  # largest share of unreadable images, which are skipped

Quotas = Mapping[Split, int | None]
Notes = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A sequence of images that is divided among one or more splits."""

    names: Sequence[str]
    labels: Sequence[int]
    read: Callable[[int], Image.Image]  # returns the i-th image, or raises `UnreadableError`
    quotas: Quotas  # filled in order; ``None`` takes all remaining images


def training_quotas(size: int, shares: Mapping[Split, float], calibration: int) -> Quotas:
    """Return quotas that divide `size` training images among ``train``, ``calibration`` and the splits in `shares`."""
    return {
        **{split: max(1, round(share * size)) for split, share in shares.items()},
        "calibration": calibration,
        "train": None,
    }


def prepare_pictures(
    data: Pictures,
    content: Mapping[str, object],
    open_parts: Callable[[], tuple[Sequence[str], Sequence[Part], Notes]],
    workspace: Workspace,
) -> DatasetRef:
    """Find the image data set that `content` identifies, or create it from classes, parts and notes."""
    geometry = preprocessing(data)
    made_from = {
        **content,
        "data": data.model_dump(mode="json", exclude=_LOCATION),
        "libraries": {module.__name__: module.__version__ for module in (PIL, torchvision)},
    }

    def fill(writer: PictureWriter) -> Description:
        classes, parts, notes = open_parts()
        unreadable = _add_all(writer, parts, geometry, data.seed, workspace.progress)
        total = sum(len(part.names) for part in parts)
        if len(unreadable) > _MOST_UNREADABLE * total:
            reasons = shortened([f"{name} ({reason})" for name, reason in sorted(unreadable.items())])
            raise InputError(
                f"{len(unreadable)} of {total} images cannot be read: {'; '.join(reasons)}.",
                hint=f"Repair or remove these images; only {_MOST_UNREADABLE:.0%} of the images are skipped.",
            )
        return Description(
            splits={},
            classes=tuple(classes),
            mean=geometry.mean,
            std=geometry.std,
            skipped=tuple(sorted(unreadable)),
            notes=(*notes, *writer.notes()),
        )

    return find_or_write_pictures(workspace.store, made_from, (3, geometry.crop, geometry.crop), fill)


def _add_all(
    writer: PictureWriter, parts: Sequence[Part], geometry: Preprocessing, seed: int, progress: Progress
) -> dict[str, str]:
    """Add each part's images to the splits in its quotas; return the error messages of unreadable images by name."""
    total, done = sum(len(part.names) for part in parts), 0
    unreadable: dict[str, str] = {}
    for part in parts:
        order = iter(stratified_order(part.labels, seed).tolist())
        for split, quota in part.quotas.items():
            added = 0
            for index in order:
                done += 1
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
    """Return a random permutation, int64 [N], in which all contiguous sections have similar class proportions."""
    rng = np.random.default_rng(seed)
    classes = np.asarray(labels, dtype=np.int64)
    place = np.empty(len(classes), dtype=np.float64)
    for label in np.unique(classes):
        members = rng.permutation(np.flatnonzero(classes == label))
        place[members] = (np.arange(len(members)) + rng.random(len(members))) / len(members)
    return np.argsort(place, kind="stable")


@dataclass(frozen=True)
class Layout:
    """An image folder: class names, indexed by label, and (file, label) pairs, keyed by split."""

    root: Path
    classes: tuple[str, ...]
    files: dict[Split, list[tuple[Path, int]]]
    notes: Notes = ()


def prepare_image_folder(data: ImageFolder, workspace: Workspace) -> DatasetRef:
    """Decode, resize and split the images in a directory or an archive."""
    downloads = workspace.store.root / "downloads"
    with open_source(data.uri, downloads, sha256=data.sha256, progress=workspace.progress) as source:

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

        return prepare_pictures(data, content, open_parts, workspace)


def find_layout(folder: Path, shown: str = "", stated: Sequence[str] = ()) -> Layout:
    """Find the classes and files in `folder` or in its only subfolder."""
    children = _folders(folder)
    for root in (folder, *children) if len(children) == 1 else (folder,):
        parts = _split_folders(root, shown or str(folder), stated)
        tree = {split: {child.name: pictures_in(child) for child in _folders(part)} for split, part in parts.items()}
        found = {name for by_class in tree.values() for name, files in by_class.items() if files}
        if len(found) > 1:
            # Like torchvision, count class folders without images, because a class number must not depend on them.
            empty = {name for by_class in tree.values() for name in by_class} - found
            classes = numbered(found if stated else found | empty, stated, shown or str(folder))
            files: dict[Split, list[tuple[Path, int]]] = {split: [] for split in tree}
            for split, (label, name) in product(tree, enumerate(classes)):
                files[split] += [(file, label) for file in tree[split].get(name, [])]
            return Layout(root, classes, files, absence_note(classes, found))
    raise InputError(
        f"{shown or folder} contains fewer than two folders of images.",
        hint="Arrange images as <class>/<image> or as train/<class>/<image>. You can add the folders test and valid "
        f"next to train. Supported suffixes: {', '.join(sorted(_SUFFIXES))}.",
    )


def _split_folders(root: Path, shown: str, stated: Sequence[str]) -> dict[Split, Path]:
    """Return the folder of each split; without split folders, `root` is ``train``."""
    children = _folders(root)
    # A folder with the name of a split is a class if it contains no folders of images, or `stated` contains its name.
    parts = [
        child
        for child in children
        if child.name.lower() in _SPLITS and child.name not in stated and any(map(pictures_in, _folders(child)))
    ]
    by_split = {_SPLITS[child.name.lower()]: child for child in parts}
    others = [child for child in children if child not in parts and pictures_in(child)]
    if parts and (others or len(by_split) < len(parts) or "train" not in by_split):
        names = ", ".join(child.name for child in (*parts, *others))
        raise InputError(
            f"{shown} contains folders that could be splits or classes: {names}.",
            hint="Use one folder for each split, name the folders train, test and valid, and move other folders "
            "elsewhere. If the folders are classes, list all classes in data.classes.",
        )
    return by_split or {"train": root}


def _folders(folder: Path) -> list[Path]:
    children = (child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    return sorted(child for child in children if child.name not in _NOT_CLASSES)


def pictures_in(folder: Path) -> list[Path]:
    """Return all files with an image suffix in a folder and its subfolders."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _parts(layout: Layout, data: ImageFolder) -> list[Part]:
    """Return the parts, with the training images last, so that duplicates of held-out images are not trained on."""

    def read(split: Split, index: int) -> Image.Image:
        with layout.files[split][index][0].open("rb") as stream:
            return open_image(stream)

    shares: dict[Split, float] = {"test": data.test_share, "valid": data.valid_share}
    missing = {split: share for split, share in shares.items() if split not in layout.files}
    train = training_quotas(len(layout.files["train"]), missing, data.calibration)
    quotas: dict[Split, Quotas] = {"test": {"test": None}, "valid": {"valid": None}, "train": train}
    parts = []
    for split, quota in quotas.items():
        if split not in layout.files:
            continue
        files = layout.files[split]
        names, labels = [str(file.relative_to(layout.root)) for file, _ in files], [label for _, label in files]
        parts.append(Part(names=names, labels=labels, read=partial(read, split), quotas=quota))
    return parts

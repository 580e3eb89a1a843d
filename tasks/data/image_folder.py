"""Image folders: one folder per class, as a directory or an archive, split here or already by its owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from storage.digest import digest_of, file_digest
from storage.errors import InputError
from storage.errors import shown as as_shown
from tasks.archive import open_source
from tasks.data.picture_sets import Part, Quotas, Split, prepare_pictures, training_quotas
from tasks.data.pictures import Preprocessing, open_image
from tasks.sources import code_digest

if TYPE_CHECKING:
    from tasks.data.sections import ImageFolder
    from tasks.job import Workspace
    from tasks.refs import DatasetRef

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})

_SPLITS: dict[str, Split] = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}


@dataclass(frozen=True)
class Layout:
    """What a folder holds: class names in order of labels, and (file, label) for each split; all "train" if unsplit."""

    root: Path
    classes: tuple[str, ...]
    files: dict[Split, list[tuple[Path, int]]]

    def digest(self) -> str:
        """Digest of the files' names and bytes: replacing an image makes a new data set."""
        files = [file for part in self.files.values() for file, _ in part]
        return digest_of({str(file.relative_to(self.root)): file_digest(file) for file in files})


def prepare_image_folder(data: ImageFolder, geometry: Preprocessing, workspace: Workspace) -> DatasetRef:
    """Decode, resize and split the images of a directory or an archive.

    Where the owner's own split has no test or valid folder, a share of the training images takes its place; the
    calibration images always come from the training ones and are then no longer among them.

    See `open_source`, `find_layout` and `prepare_pictures` for what is refused.
    """
    downloads = workspace.store.root / "downloads"
    with open_source(
        data.uri, downloads, sha256=data.sha256, max_bytes=data.max_bytes, progress=workspace.progress
    ) as source:
        # An archive is extracted only where the store does not have what is in it.
        layout = None if source.sha256 else find_layout(source.path(), as_shown(data.uri))
        content = {"files": layout.digest()} if layout else {"archive": source.sha256}
        content["code"] = code_digest(__name__)

        def open_parts() -> tuple[Sequence[str], Sequence[Part]]:
            found = layout or find_layout(source.path(), as_shown(data.uri))
            return found.classes, _parts(found, data)

        return prepare_pictures(data, geometry, content, open_parts, workspace)


def find_layout(folder: Path, shown: str = "") -> Layout:
    """Find classes and files; `folder` may hold everything in one single sub-folder, as archives often do.

    Raises
    ------
    InputError
        There are fewer than two classes with images.
    """
    children = _folders(folder)
    for root in (folder, *children) if len(children) == 1 else (folder,):
        parts = {_SPLITS[child.name.lower()]: child for child in _folders(root) if child.name.lower() in _SPLITS}
        if "train" not in parts:
            parts = {"train": root}
        found = {split: {child.name: pictures_in(child) for child in _folders(part)} for split, part in parts.items()}
        classes = sorted({name for by_class in found.values() for name, files in by_class.items() if files})
        if len(classes) > 1:
            files = {
                split: [(file, label) for label, name in enumerate(classes) for file in by_class.get(name, [])]
                for split, by_class in found.items()
            }
            return Layout(root, tuple(classes), files)
    raise InputError(
        f"{shown or folder}: fewer than two folders with images.",
        hint="Expected <class>/<image>, or train/<class>/<image> with test/ (and valid/) beside it; "
        f"images end in {', '.join(sorted(_SUFFIXES))}.",
    )


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def pictures_in(folder: Path) -> list[Path]:
    """List the pictures of a folder and of the folders in it, by their suffixes."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _parts(layout: Layout, data: ImageFolder) -> list[Part]:
    """Given test and valid images first: what occurs there as well is then left out of the training images."""

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

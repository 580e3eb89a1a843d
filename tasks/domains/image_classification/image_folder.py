"""Image folders: one folder per class, as a directory or an archive, split here or already by its owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import PIL
import torchvision

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import digest_of, file_digest, source_digest
from storage.errors import InputError
from tasks.archive import open_source
from tasks.domains.image_classification import fill as filling
from tasks.domains.image_classification.images import Description
from tasks.domains.image_classification.sections import ImageFolder
from tasks.domains.image_classification.splits import Split, stratified_order
from tasks.domains.image_classification.transforms import Preprocessing, open_image, preprocessing
from tasks.domains.image_classification.writer import KIND, ImageWriter, Pixels, find_published, publish
from tasks.job import Progress, silent
from tasks.refs import DatasetRef
from tasks.workload.workload import Workload

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})

_SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "test": "test",
}


@dataclass(frozen=True)
class Layout:
    """What a folder holds: class names in order of labels, and (file, label) for each split; all "train" if unsplit."""

    root: Path
    classes: tuple[str, ...]
    files: dict[Split, tuple[tuple[Path, int], ...]]


def prepare_image_folder(workload: Workload, store: ArtifactStore, progress: Progress = silent) -> DatasetRef:
    """Decode, resize and split the images of a directory or an archive.

    Where the owner's own split has no test or valid folder, a share of the training images takes its place; the
    calibration images always come from the training ones and are then no longer among them.

    Raises
    ------
    ConfigurationError
        The URI or the transforms are wrong.
    InputError
        There are no such folders, too many images cannot be read, or a split is left empty.
    """
    data = workload.data
    if not isinstance(data, ImageFolder):
        raise TypeError(f"not an image folder: {data.kind}")
    geometry = preprocessing(workload)
    with open_source(
        data.uri, store.root / "downloads", sha256=data.sha256, max_bytes=data.max_bytes, progress=progress
    ) as source:
        if source.sha256:
            content = {"archive": source.sha256}
            return _dataset(lambda: find_layout(source.folder(), data.uri), content, data, geometry, store, progress)
        layout = find_layout(source.folder(), data.uri)
        return _dataset(lambda: layout, {"files": _content(layout)}, data, geometry, store, progress)


def find_layout(folder: Path, shown: str = "") -> Layout:
    """Find classes and files; `folder` may hold everything in one single sub-folder, as archives often do.

    Raises
    ------
    InputError
        There are fewer than two classes with images.
    """
    shown = shown or str(folder)
    for root in (folder, *_only_child(folder)):
        given = {
            _SPLIT_NAMES[child.name.lower()]: child for child in _folders(root) if child.name.lower() in _SPLIT_NAMES
        }
        parts: dict[Split, Path] = given if "train" in given else {"train": root}
        found = {split: {child.name: _images(child) for child in _folders(part)} for split, part in parts.items()}
        classes = tuple(sorted({name for by_class in found.values() for name, files in by_class.items() if files}))
        if len(classes) > 1:
            labels = {name: label for label, name in enumerate(classes)}
            files = {
                split: tuple((file, labels[name]) for name in sorted(by_class) for file in by_class[name])
                for split, by_class in found.items()
            }
            return Layout(root, classes, files)
    raise InputError(
        f"{shown}: fewer than two folders with images.",
        hint="Expected <class>/<image>, or train/<class>/<image> with test/ (and valid/) beside it; "
        f"images end in {', '.join(sorted(SUFFIXES))}.",
    )


def _dataset(
    find: Callable[[], Layout],
    content: dict[str, Any],
    data: ImageFolder,
    geometry: Preprocessing,
    store: ArtifactStore,
    progress: Progress,
) -> DatasetRef:
    made_from = {
        "data": data.model_dump(mode="json", exclude={"uri", "sha256", "max_bytes", "transforms", "image_size"}),
        "preprocessing": asdict(geometry),
        "content": content,
        "libraries": {module.__name__: module.__version__ for module in (PIL, torchvision)},
        "source": source_digest(filling, Preprocessing, ImageWriter, stratified_order, _fill, _parts, find_layout),
    }
    digest = artifact_digest(KIND, made_from)
    found = find_published(store, digest)
    if found is not None:
        return found
    layout = find()
    description = Description(layout.classes, geometry.mean, geometry.std)
    return publish(
        store,
        digest,
        made_from,
        description,
        geometry.shape,
        partial(_fill, layout=layout, data=data, geometry=geometry, progress=progress),
    )


def _fill(
    writer: ImageWriter, layout: Layout, data: ImageFolder, geometry: Preprocessing, progress: Progress
) -> Sequence[str]:
    parts = _parts(layout, data, geometry)
    return filling.fill(writer, parts, seed=data.seed, max_corrupt_share=data.max_corrupt_share, progress=progress)


def _parts(layout: Layout, data: ImageFolder, geometry: Preprocessing) -> list[filling.Part]:
    """Given test and valid images first: what occurs there as well is then left out of the training images."""
    pool = filling.quotas_of_pool(
        len(layout.files["train"]),
        data.calibration,
        test=None if "test" in layout.files else data.test_share,
        valid=None if "valid" in layout.files else data.valid_share,
    )
    given: tuple[Split, ...] = ("test", "valid")
    quotas: dict[Split, tuple[tuple[Split, int | None], ...]] = {
        **{split: ((split, None),) for split in given if split in layout.files},
        "train": pool,
    }
    return [
        filling.Part(
            names=[str(file.relative_to(layout.root)) for file, _ in layout.files[split]],
            labels=[label for _, label in layout.files[split]],
            read=partial(_read, files=layout.files[split], geometry=geometry),
            quotas=quota,
        )
        for split, quota in quotas.items()
    ]


def _read(index: int, files: Sequence[tuple[Path, int]], geometry: Preprocessing) -> Pixels:
    with files[index][0].open("rb") as stream:
        return geometry.pixels(open_image(stream))


def _content(layout: Layout) -> str:
    """Digest of the files' names and bytes: an image that was replaced makes a new data set."""
    files = sorted(file for part in layout.files.values() for file, _ in part)
    hashes = {str(file.relative_to(layout.root)): file_digest(file) for file in files}
    return digest_of(hashes)


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _only_child(folder: Path) -> list[Path]:
    children = _folders(folder)
    return children if len(children) == 1 else []


def _images(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )

"""Prepared data: tensors in the store, so that the user's code is asked once and every machine sees the same.

An artifact of kind ``samples`` holds ``samples.json`` and a safetensors file for each split: the stacked items as
``input.<name>`` and ``target``, or, where a collate function makes the batches, each batch under its number
(``000000.input.<name>``). Then ``test-rows`` has the test split's items in batches of one as well: what the model sees
when it is called with one row, without another row's padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.domains.custom.names import BATCH
from tasks.refs import DatasetRef, Frozen
from tasks.tensor_files import save_tensors

KIND = "samples"
DESCRIPTION, REFERENCE = "samples.json", "dataset.json"
ROWS = "test-rows"
_TARGET, _INPUT = "target", "input."


class Description(Frozen):
    """The content of ``samples.json``.

    ``inputs`` are names in calling order; ``collated`` says that splits lie in batches of their own; of a table
    ``features`` are columns, ``mean`` and ``std`` what standardized them (empty where nothing did), and ``classes`` the
    labels by number.
    """

    inputs: tuple[str, ...]
    collated: bool = False
    features: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Inputs by name in calling order, and the target, whose first axis is that of the rows."""

    inputs: dict[str, Tensor]
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True)
class Samples:
    """A split in the store."""

    batches: tuple[Batch, ...]
    collated: bool

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def in_batches(self, batch_size: int) -> Iterator[Batch]:
        """Batches of `batch_size` rows, the last one smaller; those of a collate function are as it made them."""
        if self.collated:
            yield from self.batches
            return
        (whole,) = self.batches
        for start in range(0, len(whole), batch_size):
            rows = slice(start, start + batch_size)
            yield Batch({name: tensor[rows] for name, tensor in whole.inputs.items()}, whole.target[rows])


def write_batches(path: Path, batches: Mapping[str, Batch]) -> None:
    """Write batches under prefixes ("" for the only one)."""
    tensors: dict[str, Tensor] = {}
    for prefix, batch in batches.items():
        tensors |= {f"{prefix}{_INPUT}{name}": tensor for name, tensor in batch.inputs.items()}
        tensors[f"{prefix}{_TARGET}"] = batch.target
    save_tensors({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, path)


def read_description(dataset: DatasetRef, store: ArtifactStore) -> Description:
    """Read a data set's ``samples.json``."""
    path = store.path(dataset.kind, dataset.digest) / DESCRIPTION
    return Description.model_validate_json(path.read_text(encoding="utf-8"))


def load_samples(dataset: DatasetRef, split: str, store: ArtifactStore) -> Samples:
    """Read a split.

    Raises
    ------
    InputError
        The data set has no such split.
    StoreError
        The artifact is not in the store.
    """
    description = read_description(dataset, store)
    path = store.path(dataset.kind, dataset.digest) / f"{split}.safetensors"
    if not path.is_file():
        raise InputError(f"The data set has no split {split}: it has {', '.join(dataset.splits)}.")
    with safe_open(path, framework="pt") as file:
        prefixes = sorted(key.removesuffix(_TARGET) for key in file.keys() if key.endswith(_TARGET))  # noqa: SIM118
        batches = tuple(
            Batch(
                {name: file.get_tensor(f"{prefix}{_INPUT}{name}") for name in description.inputs},
                file.get_tensor(f"{prefix}{_TARGET}"),
            )
            for prefix in prefixes
        )
    return Samples(batches, description.collated)


def load_test(dataset: DatasetRef, store: ArtifactStore, *, apart: bool) -> Samples:
    """The test split, for calls with one row where a collate function would pad rows that run together."""
    collated = read_description(dataset, store).collated
    return load_samples(dataset, ROWS if apart and collated else "test", store)


def example_rows(
    dataset: DatasetRef,
    axes: Mapping[str, Mapping[int, str]],
    store: ArtifactStore,
    batch_size: int,
    steps: tuple[str, int] | None = None,
) -> dict[str, Tensor]:
    """Inputs of `batch_size` test rows, the first ones; a first batch that is too short is repeated.

    Parameters
    ----------
    steps
        The name of an axis and its length: the first batch that has it, else the next longer one, cut there, else the
        longest, repeated.
    """
    batches = load_test(dataset, store, apart=batch_size == 1).in_batches(batch_size)
    lengths = {BATCH: batch_size}
    if steps is None:
        batch = next(batches)
    else:
        name, length = steps
        lengths[name] = length
        batch = min(batches, key=lambda each: _distance(each, axes, name, length))
    found = {}
    for name, tensor in batch.inputs.items():
        for axis, of in axes[name].items():
            if of in lengths and tensor.shape[axis] != lengths[of]:
                tensor = tensor.index_select(axis, torch.arange(lengths[of]) % tensor.shape[axis])
        found[name] = tensor.contiguous()
    return found


def _distance(batch: Batch, axes: Mapping[str, Mapping[int, str]], name: str, length: int) -> tuple[bool, int]:
    there = next(
        batch.inputs[each].shape[axis] for each, named in axes.items() for axis, of in named.items() if of == name
    )
    return there < length, abs(there - length)


def open_axes(names: Mapping[str, tuple[str, ...]], inputs: tuple[str, ...]) -> Mapping[str, Mapping[int, str]]:
    """``data.axes`` as numbers of axes and names of lengths; without it each input's first axis is that of the rows."""
    if not names:
        return {name: {0: BATCH} for name in inputs}
    return {name: {axis: length for axis, length in enumerate(names.get(name, ())) if length} for name in inputs}

"""The axes of a user's inputs: what is open, what is timed, and what a workload file to be written says of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from storage.artifacts import ArtifactStore
from tasks.data.samples import TARGET, read_description
from tasks.data.sections import BATCH
from tasks.data.splits import load_samples, load_test
from tasks.refs import DatasetRef


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
    split = load_test(dataset, store, apart=batch_size == 1)
    names = split.description.inputs
    batches = (dict(zip(names, batch.inputs, strict=True)) for batch in split.batches(batch_size))
    lengths = {BATCH: batch_size}
    if steps is None:
        batch = next(batches)
    else:
        name, length = steps
        lengths[name] = length
        batch = min(batches, key=lambda each: _distance(each, axes, name, length))
    found = {}
    for name, tensor in batch.items():
        for axis, of in axes[name].items():
            if of in lengths and tensor.shape[axis] != lengths[of]:
                tensor = tensor.index_select(axis, torch.arange(lengths[of]) % tensor.shape[axis])
        found[name] = tensor.contiguous()
    return found


def _distance(
    batch: Mapping[str, Tensor], axes: Mapping[str, Mapping[int, str]], name: str, length: int
) -> tuple[bool, int]:
    there = next(batch[each].shape[axis] for each, named in axes.items() for axis, of in named.items() if of == name)
    return there < length, abs(there - length)


def open_axes(names: Mapping[str, tuple[str, ...]], inputs: tuple[str, ...]) -> Mapping[str, Mapping[int, str]]:
    """``data.axes`` as numbers of axes and names of lengths; without it each input's first axis is that of the rows."""
    if not names:
        return {name: {0: BATCH} for name in inputs}
    return {name: {axis: length for axis, length in enumerate(names.get(name, ())) if length} for name in inputs}


def metric_for(dataset: DatasetRef, store: ArtifactStore) -> str:
    """``mse`` for numbers, ``accuracy`` for a class a row, ``loss`` for several."""
    target = load_samples(dataset, "test", store).columns[TARGET]
    first = target.values if target.shapes is None else target[0]
    if first.is_floating_point():
        return "mse"
    return "accuracy" if first.dim() == 1 else "loss"


def axes_of(dataset: DatasetRef, store: ArtifactStore) -> dict[str, list[str]]:
    """``data.axes`` of batches that a collate function made; empty where items are stacked, whose axis 0 is ``batch``.

    Axes are named alike whose lengths are always equal.
    """
    described = read_description(dataset, store)
    if not described.collated:
        return {}
    # Single rows as well: what is as long as a batch by chance is not as long as every one.
    splits = [load_test(dataset, store, apart=apart).columns for apart in (False, True)]
    shapes = {name: [shape for split in splits for shape in split[name].shapes or ()] for name in splits[0]}
    names: dict[tuple[int, ...], str] = {tuple(shape[0] for shape in shapes[TARGET]): BATCH}
    found = {}
    for name in described.inputs:
        lengths = [tuple(shape[axis] for shape in shapes[name]) for axis in range(len(shapes[name][0]))]
        for each in lengths:
            if len(set(each)) > 1 and each not in names:
                names[each] = "length" if len(names) == 1 else f"length-{len(names)}"
        axes = [names.get(each, "") for each in lengths]
        while axes and not axes[-1]:
            axes.pop()
        found[name] = axes
    return found

"""What prepared data say of a workload file that is yet to be written."""

from __future__ import annotations

from storage.artifacts import ArtifactStore
from tasks.domains.custom.names import BATCH
from tasks.domains.custom.samples import load_samples, load_test, read_description
from tasks.refs import DatasetRef


def metric_for(dataset: DatasetRef, store: ArtifactStore) -> str:
    """``mse`` for numbers, ``accuracy`` for a class a row, ``loss`` for several."""
    target = load_samples(dataset, "test", store).batches[0].target
    if target.is_floating_point():
        return "mse"
    return "accuracy" if target.dim() == 1 else "loss"


def axes_of(dataset: DatasetRef, store: ArtifactStore) -> dict[str, list[str]]:
    """``data.axes`` of batches that a collate function made; empty where items are stacked, whose axis 0 is ``batch``.

    Axes are named alike whose lengths are always equal.
    """
    if not read_description(dataset, store).collated:
        return {}
    # Single rows as well: what is as long as a batch by chance is not as long as every one.
    batches = [batch for apart in (False, True) for batch in load_test(dataset, store, apart=apart).batches]
    names: dict[tuple[int, ...], str] = {tuple(map(len, batches)): BATCH}
    found = {}
    for name, first in batches[0].inputs.items():
        lengths = [tuple(batch.inputs[name].shape[axis] for batch in batches) for axis in range(first.dim())]
        for each in lengths:
            if len(set(each)) > 1 and each not in names:
                names[each] = "length" if len(names) == 1 else f"length-{len(names)}"
        axes = [names.get(each, "") for each in lengths]
        while axes and not axes[-1]:
            axes.pop()
        found[name] = axes
    return found

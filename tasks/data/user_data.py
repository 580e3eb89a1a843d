"""Samples from the user's own callable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from storage.digest import file_digest
from storage.errors import ConfigurationError, InputError
from storage.humanize import plural
from tasks.data.samples import ROWS, TARGET, Description, find_or_write, shortened, write_split
from tasks.data.sections import FactoryData
from tasks.environment.libraries import reported_as
from tasks.environment.sources import code_digest, user_digest
from tasks.environment.user_code import call, in_its_own_words
from tasks.values.job import Workspace
from tasks.values.refs import DatasetRef

_NEEDED = ("calibration", "test")
_VALID = ("valid", "val", "validation")  # usual names of a validation split
_CALIBRATION = 256  # number of training rows to use for calibration if the calibration split is missing

Items = Sequence[object]  # a map-style data set of (inputs, target) pairs


def load_splits(data: FactoryData) -> Mapping[str, Items]:
    """Call ``data.factory``; refuse a result that is not a mapping of non-empty splits."""
    factory = f'data.factory "{data.factory}"'
    splits = cast("Mapping[str, Items]", call("data.factory", data.factory, data.folder, **data.arguments))
    with in_its_own_words(f"{factory} does not return a mapping of data sets", "Return lists or map-style data sets."):
        counts = {str(split): len(items) for split, items in splits.items()}
    if not counts.get("test") or not (counts.get("calibration") or counts.get("train")):
        raise InputError(
            f"{factory} returned too few samples: {counts}.",
            hint='Return at least one sample for "test", and at least one for "calibration" or "train".',
        )
    return splits


def _with_calibration(splits: Mapping[str, Items]) -> tuple[Mapping[str, Items], tuple[str, ...]]:
    """Replace a missing calibration split with evenly spaced training rows; return the splits and a note."""
    if len(splits.get("calibration", ())):
        return splits, ()
    train = splits["train"]
    count = min(len(train), _CALIBRATION)
    rows = [train[number * len(train) // count] for number in range(count)]
    note = f'the "calibration" split is missing, so calibration uses {count:,} of {len(train):,} training rows'
    return {**splits, "calibration": rows}, (note,)


def prepare_factory(data: FactoryData, model: nn.Module, workspace: Workspace) -> DatasetRef:
    """Find the calibration, test and (if there is one) valid split in the store, or create them."""
    parameters = forward_parameters(model)
    hint = "Correct the path, which is relative to the workload file."
    with reported_as("A file in data.files cannot be read", hint):
        files = {name: file_digest(Path(data.folder, name)) for name in data.files}
    made_from: dict[str, object] = {
        "data": data.model_dump(mode="json", exclude={"axes", "files"}),
        "files": files,
        "parameters": parameters,
        "code": user_digest(data.folder, *filter(None, (data.factory, data.collate))),
        "torch": torch.__version__,
        "preparation": code_digest(__name__),
    }

    def fill(folder: Path) -> Description:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            splits, notes = _with_calibration(load_splits(data))
            kept = {split: splits[split] for split in _NEEDED}
            if valid := next((splits[name] for name in _VALID if len(splits.get(name, ()))), None):
                kept["valid"] = valid  # a search must not choose on the data that calibrated its candidates
            for split, items in kept.items():
                columns = _columns(data, split, items, parameters, data.batch_size, workspace)
                write_split(folder, split, columns)
                if data.collate:
                    write_split(folder, split + ROWS, _columns(data, split, items, parameters, 1, workspace))
        inputs = tuple(name for name in columns if name != TARGET)
        first = columns[inputs[0]][0]
        return Description(
            splits={split: len(items) for split, items in kept.items()},
            inputs=inputs,
            collated=bool(data.collate),
            sample_shape=tuple(first.shape[1:] if data.collate else first.shape),
            notes=notes,
        )

    return find_or_write(workspace.store, made_from, fill)


def forward_parameters(model: nn.Module) -> list[str]:
    """Return the names of ``forward``'s positional parameters."""
    return [
        parameter.name
        for parameter in signature(model.forward).parameters.values()
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]


def _columns(
    data: FactoryData, split: str, items: Items, parameters: Sequence[str], size: int, workspace: Workspace
) -> Mapping[str, Tensor | list[Tensor]]:
    """Return a split's columns; stack all items as rows, or combine the batches from a collate function."""
    split_name, count = f'data.factory "{data.factory}", split "{split}"', len(items)
    all_items: list[object] = []
    with in_its_own_words(f"{split_name}: reading an item failed", "Fix the data set."):
        for index in range(count):
            all_items.append(items[index])
            workspace.progress(index + 1, count, f"{split} samples")
    records: list[dict[str, Tensor]] = []
    step = size if data.collate else 1
    for start in range(0, count, step):
        batch, item, source = all_items[start : start + step], all_items[start], f"{split_name}, item {start}"
        if data.collate:
            source = f'data.collate "{data.collate}"'
            item = call("data.collate", data.collate, data.folder, batch)
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ConfigurationError(
                f"{source}: expected a pair (inputs, target), but got an object of type {type(item).__name__}.",
                hint="Return a pair (inputs, target).",
            )
        inputs, target = item
        record = _by_parameter(inputs, parameters, source) | {TARGET: _tensor(target, f"{source}, target")}
        if data.collate and record[TARGET].shape[:1] != (len(batch),):
            raise ConfigurationError(
                f"{source} returned a target of shape {list(record[TARGET].shape)} for a batch of {len(batch)} items.",
                hint="Return a target whose first axis has one entry per item.",
            )
        records.append(record)
    columns = {name: [record[name] for record in records] for name in records[0]}
    return columns if data.collate else {name: _stack(rows, split_name, name) for name, rows in columns.items()}


def _by_parameter(inputs: object, parameters: Sequence[str], source: str) -> dict[str, Tensor]:
    """Return the inputs keyed by the names of ``forward``'s parameters, in parameter order."""
    given = inputs if isinstance(inputs, tuple | list | Mapping) else [inputs]
    expected = parameters[: len(given)]
    values = given if isinstance(given, Mapping) else dict(zip(expected, given, strict=False))
    if not given or len(expected) < len(given) or set(values) != set(expected):
        names = f" ({', '.join(map(str, given))})" if isinstance(given, Mapping) else ""
        takes = ", ".join(parameters) or "none"
        raise ConfigurationError(
            f"{source}: received {plural(len(given), 'input')}{names}, but the model's forward takes {takes}.",
            hint="Return values for forward's first parameters, in order or keyed by name.",
        )
    return {name: _tensor(values[name], f'{source}, input "{name}"') for name in expected}


def _tensor(value: object, source: str) -> Tensor:
    with in_its_own_words(f"{source}: the value cannot be converted to a tensor", "Return a tensor."):
        tensor = torch.as_tensor(value)
    if tensor.dtype in (torch.float64, torch.bfloat16):  # NumPy lacks bfloat16
        tensor = tensor.float()
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise InputError(
            f"{source}: the tensor contains NaN or infinities.", hint="Correct or remove the affected samples."
        )
    return tensor.detach().cpu()


def _stack(tensors: Sequence[Tensor], source: str, column: str) -> Tensor:
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        name = "target" if column == TARGET else f'input "{column}"'
        listed = ", ".join(shortened([str(list(shape)) for shape in sorted(shapes)]))
        raise ConfigurationError(
            f"{source}, {name}: the items have different shapes ({listed}).",
            hint="Make the shapes equal, or set data.collate to a function that pads a list of items.",
        )
    return torch.stack(list(tensors))

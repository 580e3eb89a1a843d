"""Data that a callable of the user's gives, turned into samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path

import torch
from torch import Tensor, nn

from storage.digest import file_digest
from storage.errors import ConfigurationError, InputError, first_line
from tasks.data.samples import SINGLE, TARGET, Description, find_or_write, write_split
from tasks.data.sections import FactoryData
from tasks.job import Workspace
from tasks.refs import DatasetRef
from tasks.sources import code_digest, user_digest
from tasks.user_code import call, in_its_own_words

_STORED = ("calibration", "test")
_CALIBRATION = 256  # training rows that calibrate if no split does

Items = Sequence[object]  # of a map-style data set: (inputs, target)


def load_splits(data: FactoryData) -> Mapping[str, Items]:
    """Call ``data.factory``.

    Raises
    ------
    ConfigurationError
        It fails, or gives something else than data sets by split.
    InputError
        A split that is needed is missing or empty.
    """
    what = f'data.factory "{data.factory}"'
    found = call("data.factory", data.factory, data.folder, **data.arguments)
    if not isinstance(found, Mapping):
        raise ConfigurationError(
            f"{what} returned {type(found).__name__}, not a mapping.",
            hint='Return {"calibration": …, "test": …}, and "train" where weights are trained.',
        )
    for split, items in found.items():
        if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
            raise ConfigurationError(
                f'{what}: the split "{split}" is a {type(items).__name__}, not a map-style data set.',
                hint="It needs __len__ and __getitem__, as torch.utils.data.Dataset and lists have.",
            )
    needed = ("test",) if _count(found, "train") else _STORED
    if lacking := [split for split in needed if not _count(found, split)]:
        counts = {str(split): len(items) for split, items in found.items()}
        raise InputError(
            f"{what} gives no samples for: {', '.join(lacking)} (found: {counts}).",
            hint='Give at least one to every split. Without "calibration", rows of "train" calibrate.',
        )
    return found


def _count(splits: Mapping[str, Items], split: str) -> int:
    return len(splits[split]) if split in splits else 0


def _with_calibration(splits: Mapping[str, Items]) -> tuple[Mapping[str, Items], tuple[str, ...]]:
    """Take evenly spaced training rows for calibration if no split is for it; return the splits, and notes on this."""
    if _count(splits, "calibration"):
        return splits, ()
    train = splits["train"]
    count = min(len(train), _CALIBRATION)
    rows = [train[number * len(train) // count] for number in range(count)]
    note = f'the data give no "calibration" split, so {count:,} of {len(train):,} training rows calibrate'
    return {**splits, "calibration": rows}, (note,)


def prepare_factory(data: FactoryData, model: nn.Module, workspace: Workspace) -> DatasetRef:
    """Prepare the calibration and test splits, or find them in the store.

    Raises
    ------
    ConfigurationError
        The user's code fails, or what it gives are no inputs of the model.
    InputError
        A split is empty, or holds NaN or infinities.
    """
    parameters = forward_parameters(model)
    made_from: dict[str, object] = {
        "data": data.model_dump(mode="json", exclude={"axes", "files"}),
        "files": {name: _file_digest(Path(data.folder, name)) for name in data.files},
        "parameters": parameters,
        "code": user_digest(data.folder, *filter(None, (data.factory, data.collate))),
        "torch": torch.__version__,
        "preparation": code_digest(__name__),
    }

    def fill(folder: Path) -> Description:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            splits, notes = _with_calibration(load_splits(data))
            made = {
                split: _columns(data, split, splits[split], parameters, data.batch_size, workspace) for split in _STORED
            }
            if data.collate:
                made[SINGLE] = _columns(data, "test", splits["test"], parameters, 1, workspace)
        types: dict[str, str] = {}
        for split, columns in made.items():
            types |= write_split(folder, split, columns)
        inputs = tuple(name for name in made["test"] if name != TARGET)
        first = made["test"][inputs[0]][0]
        return Description(
            splits={split: len(splits[split]) for split in _STORED},
            inputs=inputs,
            types=types,
            collated=bool(data.collate),
            sample_shape=tuple(first.shape[1:] if data.collate else first.shape),
            notes=notes,
        )

    return find_or_write(workspace.store, made_from, fill)


def forward_parameters(model: nn.Module) -> list[str]:
    """Names of the positional parameters of a model's forward; ``*name`` for one that takes any number."""
    return [
        f"*{parameter.name}" if parameter.kind is Parameter.VAR_POSITIONAL else parameter.name
        for parameter in signature(model.forward).parameters.values()
        if parameter.kind not in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    ]


def first_input(model: nn.Module) -> str:
    """Return the name of the first input that a model's forward takes; without one, raise a `ConfigurationError`."""
    parameters = forward_parameters(model)
    if not parameters:
        raise ConfigurationError("The model's forward takes no input.", hint="It needs one: float32 [rows, features].")
    return parameters[0].removeprefix("*")


def _file_digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror or error}.", hint="data.files are paths beside the workload file."
        ) from error


def _columns(
    data: FactoryData, split: str, items: Items, parameters: Sequence[str], size: int, workspace: Workspace
) -> Mapping[str, Tensor | list[Tensor]]:
    """Return a split's columns: rows of all items stacked, or the batches of a collate function."""
    where = f'data.factory "{data.factory}": split "{split}"'
    count = len(items)
    read: list[object] = []
    with in_its_own_words(f"{where}: reading an item failed", "Fix the data set."):
        for index in range(count):
            read.append(items[index])
            workspace.progress(index + 1, count, f"{split} samples")
    records: list[dict[str, Tensor]] = []
    step = size if data.collate else 1
    for start in range(0, count, step):
        chosen, item, what = read[start : start + step], read[start], f"{where}, item {start}"
        if data.collate:
            what = f'data.collate "{data.collate}"'
            item = call("data.collate", data.collate, data.folder, chosen)
        inputs, target = _pair(item, what)
        row = _named(inputs, parameters, what) | {TARGET: _tensor(target, f"{where}: target")}
        if data.collate and row[TARGET].shape[:1] != (len(chosen),):
            raise ConfigurationError(
                f"{what} made a target of shape {list(row[TARGET].shape)} of {len(chosen)} items.",
                hint="The target's first axis is that of the items.",
            )
        records.append(row)
    columns = {name: [record[name] for record in records] for name in records[0]}
    return columns if data.collate else {name: _stack(rows, where, name) for name, rows in columns.items()}


def _pair(item: object, where: str) -> tuple[object, object]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ConfigurationError(f"{where} is a {type(item).__name__}, not a pair (inputs, target).")
    return item[0], item[1]


def _named(inputs: object, parameters: Sequence[str], where: str) -> dict[str, Tensor]:
    """Inputs by the names of forward's parameters, in their order."""
    if isinstance(inputs, Mapping):
        given = {str(name): value for name, value in inputs.items()}
        unknown = [name for name in given if name not in parameters]
        order = [name for name in parameters if name in given]
        if unknown or order != list(parameters[: len(order)]):
            raise ConfigurationError(
                f"{where} has the inputs {', '.join(given)}; the model's forward takes {', '.join(parameters)}.",
                hint="Models are called positionally: name the first of forward's parameters, without a gap.",
            )
        return {name: _tensor(given[name], f'{where}: input "{name}"') for name in order}
    values = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    starred = next((name[1:] for name in parameters if name.startswith("*")), "")
    names = [name for name in parameters if not name.startswith("*")]
    names += [f"{starred}_{index}" for index in range(len(values) - len(names))] if starred else []
    if not values or len(values) > len(names):
        raise ConfigurationError(
            f"{where} has {len(values)} inputs; the model's forward takes {', '.join(parameters) or 'none'}."
        )
    return {name: _tensor(value, f'{where}: input "{name}"') for name, value in zip(names, values, strict=False)}


def _tensor(value: object, where: str) -> Tensor:
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"{where} is a {type(value).__name__}, not a tensor or a number: {first_line(error)}."
        ) from error
    if tensor.dtype == torch.float64:
        tensor = tensor.float()
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise InputError(f"{where} holds NaN or infinities.", hint="Remove or fill such samples.")
    return tensor.detach().cpu()


def _stack(tensors: Sequence[Tensor], where: str, column: str) -> Tensor:
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        what = "target" if column == TARGET else f'input "{column}"'
        shown = ", ".join(str(list(shape)) for shape in sorted(shapes)[:3])
        raise ConfigurationError(
            f"{where}: {what} has items of different shapes: {shown}{', …' if len(shapes) > 3 else ''}.",
            hint="Make them equal, or name a function that pads a list of items: data.collate.",
        )
    return torch.stack(list(tensors))

"""A Hugging Face directory on this machine: its configuration, pooling and weights; nothing is downloaded or run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.digest import JsonObject
from storage.errors import InputError, first_line

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# What a configuration says of where it lay or how it was saved, which decides nothing of a model.
_IDLE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
_TYPES = frozenset({"F64", "F32", "F16", "BF16", "I64"})  # I64: buffers of positions in old files
_UNTOLD = 2  # classes, where a configuration says nothing of them: transformers' own default
_LARGEST_JSON = 64 * 1024**2


def read_config(folder: Path) -> JsonObject:
    """``config.json`` without what decides nothing.

    Raises
    ------
    InputError
        There is no such file, or it holds something else.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise InputError(
            f"{folder}: holds no {CONFIG}; model.path must name a directory as save_pretrained writes it, on this "
            "machine: models are not downloaded by their names"
        )
    document = _read_json(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: not a JSON object")
    return {key: value for key, value in document.items() if key not in _IDLE}


def is_classifier(config: Mapping[str, object]) -> bool:
    """Whether a configuration names a sequence classifier; else it is an encoder's, for embeddings."""
    named = config.get("architectures")
    return isinstance(named, list) and any("ForSequenceClassification" in str(name) for name in named)


def labels_of(config: Mapping[str, object]) -> tuple[str, ...]:
    """The labels of a classifier's configuration by number, named as transformers does where it has no names."""
    named, count = config.get("id2label"), config.get("num_labels")
    if isinstance(named, Mapping):
        return tuple(str(named[key]) for key in sorted(named, key=int))
    return tuple(f"LABEL_{index}" for index in range(count if isinstance(count, int) else _UNTOLD))


def read_pooling(folder: Path) -> dict[str, object]:
    """``pooling`` and ``normalize`` as sentence-transformers' files say; {} where there are none.

    Raises
    ------
    InputError
        They ask for what is not done here.
    """
    if not (folder / "modules.json").is_file():
        return {}
    modules = _read_json(folder / "modules.json")
    found: dict[str, object] = {"normalize": False}
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            settings = _read_json(folder / Path(str(module.get("path", ""))).name / CONFIG)
            modes = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True]
            named = settings.get("pooling_mode")
            pooling = _MODES.get(modes[0]) if len(modes) == 1 else named if named in _MODES.values() else None
            if pooling is None:
                raise InputError(
                    f"{folder}: pools by {named or ' and '.join(modes) or 'nothing'}; only mean, cls and max are known"
                )
            found["pooling"] = pooling
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind != "Transformer":
            raise InputError(f"{folder}: modules.json names a module of type {kind}, which is not known here")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the weights: one, or those that an index names.

    Raises
    ------
    InputError
        There are none; pickles (``pytorch_model.bin``) are refused.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / _INDEX).is_file():
        named = _read_json(folder / _INDEX).get("weight_map", {})
        files = [folder / name for name in sorted({str(name) for name in named.values()})]
        if wrong := [path.name for path in files if path.parent != folder or not path.is_file()]:
            raise InputError(f"{folder}: {_INDEX} names files that are not there: {', '.join(wrong[:5])}.")
        return files
    if pickles := [name for name in _PICKLES if (folder / name).is_file()]:
        raise InputError(
            f"{folder}: its weights are a pickle ({pickles[0]}), which is never loaded.",
            hint="Save it again with transformers: model.save_pretrained(folder), which writes safetensors.",
        )
    raise InputError(f"{folder}: holds no {WEIGHTS}.", hint="Save the model there: model.save_pretrained(folder).")


def check_weights(files: list[Path], parameters: int) -> None:
    """Read the files' headers and refuse them before anything is made of them.

    Raises
    ------
    InputError
        They are broken, hold other types than floating-point weights, or fewer values than the model's `parameters`.
    """
    from safetensors import SafetensorError, safe_open

    values, wrong = 0, []
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - it is no mapping
                    tensor = file.get_slice(key)
                    values += math.prod(tensor.get_shape())
                    if tensor.get_dtype() not in _TYPES:
                        wrong.append(f"{key} ({tensor.get_dtype()})")
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: cannot be read as safetensors: {first_line(error)}.") from error
    if wrong:
        raise InputError(
            f"{files[0].parent}: weights of types that no float model has: {', '.join(wrong[:5])}.",
            hint="Bring the float model, not one that is quantized already.",
        )
    if values < parameters:
        raise InputError(
            f"{files[0].parent}: {CONFIG} describes a model of {parameters:,} parameters, and the files hold "
            f"{values:,} values.",
            hint="Is the model saved whole? A classifier needs its head: save it after it was trained.",
        )


def tokenizer_file(folder: Path) -> Path:
    """``tokenizer.json``.

    Raises
    ------
    InputError
        There is none: older directories have a vocabulary only.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise InputError(
            f"{folder}: holds no {TOKENIZER}.",
            hint="Write it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
        )
    return path


def _read_json(path: Path) -> Any:  # JSON of any shape
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise InputError(f"{path}: larger than {_LARGEST_JSON} bytes, which no such file is")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {first_line(error)}") from error

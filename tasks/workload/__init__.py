"""Workload files: find, read and refuse them with file, key and what was expected; no torch, no Prefect."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from copy import deepcopy
from pathlib import Path

from pydantic import ValidationError

from storage.documents import JsonObject
from storage.errors import ConfigurationError
from storage.messages import did_you_mean
from tasks.workload.explain import explain
from tasks.workload.workload import Workload

__all__ = ["Workload", "find_workloads", "read_workload", "validated"]


def read_workload(path: Path) -> Workload:
    """Read and validate one workload file.

    Relative paths in ``data.uri``, ``data.root`` and ``checkpoint.uri`` count from the file's folder, and the user's
    code is looked for there first.

    Raises
    ------
    ConfigurationError
        The file cannot be read, is not TOML, or a key, type, recipe or reference is wrong.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        too_large = [number for number in _integers(document) if not -(1 << 63) <= number < 1 << 63]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}.") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path}: not valid TOML: it is nested too deeply.") from error
    except ValueError as error:  # beside TOMLDecodeError, what Python says to an integer of thousands of digits
        raise ConfigurationError(f"{path}: not valid TOML: {error}.") from error
    if too_large:
        raise ConfigurationError(f"{path}: not valid TOML: an integer has more than 64 bits.")
    return validated(path, document)


def validated(path: Path, document: JsonObject) -> Workload:
    """Validate what stands, or will stand, in a workload file; it is left as it is.

    Raises
    ------
    ConfigurationError
        A key, type, recipe or reference is wrong.
    """
    document, folder = deepcopy(dict(document)), path.resolve().parent
    for section, key in (("data", "uri"), ("data", "root"), ("checkpoint", "uri")):
        table = document.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str) and "://" not in table[key]:
            table[key] = str(folder / Path(table[key]).expanduser())
    try:
        return Workload.model_validate(document, context={"folder": str(folder)})
    except ValidationError as error:
        raise ConfigurationError(explain(path, document, error)) from error


def find_workloads(names: Iterable[str], built_in: Path) -> list[Workload]:
    """Resolve workload names and TOML paths; no names means every built-in one.

    Raises
    ------
    ConfigurationError
        A name is unknown, a file is wrong, or two workloads share a name.
    """
    known = {path.stem: path for path in sorted(built_in.glob("*.toml"))}
    workloads = []
    for name in list(names) or known:
        path = Path(name) if name.endswith(".toml") else known.get(name)
        if path is None:
            raise ConfigurationError(
                f'Unknown workload "{name}"{did_you_mean(name, known)}.',
                hint=f"Expected a TOML file or one of: {', '.join(known)}.",
            )
        workloads.append(read_workload(path))
    for name, count in Counter(workload.name for workload in workloads).items():
        if count > 1:
            raise ConfigurationError(f'Two workloads are named "{name}".', hint="Give each its own name.")
    return workloads


def _integers(value: object) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _integers(item)

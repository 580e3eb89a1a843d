"""Import and call the user's code; report errors with the traceback lines from the user's files."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import ConfigurationError, NightquantError, did_you_mean, is_transient

if TYPE_CHECKING:
    from torch import nn

    from tasks.workload.base import FactorySpec

_OURS = ("flows", "tasks", "storage")
_ROOT = Path(__file__).parents[2]
_LIBRARIES = (*(str(_ROOT / name) for name in _OURS), sysconfig.get_path("stdlib"))


def call_factory(spec: FactorySpec) -> nn.Module:
    """Call ``model.factory`` with ``model.arguments``; return the model, which must be a ``torch.nn.Module``."""
    from torch import nn

    model = call("model.factory", spec.factory, spec.folder, **spec.arguments)
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f'model.factory "{spec.factory}" returned an object of type {type(model).__name__}, not a torch.nn.Module.',
            hint="Change the factory so that it returns the float model.",
        )
    return model


def call(key: str, reference: str, folder: str, /, *args: object, **kwargs: object) -> object:
    """Import and call ``module:callable``; the module is looked up in `folder` first, then in the current folder."""
    with opened(key, reference, folder) as function:
        return function(*args, **kwargs)


@contextmanager
def opened(key: str, reference: str, folder: str) -> Iterator[Callable[..., object]]:
    """Import ``module:callable`` for repeated calls; see `call`."""
    module_name, _, attribute = reference.partition(":")
    searched = " and ".join(dict.fromkeys(filter(None, (folder, str(Path.cwd())))))
    hint = f"Fix the module. Searched folders: {searched}."
    with importable(folder):
        with in_its_own_words(f'{key} "{reference}": importing {module_name} failed', hint), _on_cpu():
            function: Callable[..., object] = import_module(module_name)  # type: ignore[assignment]
            for name in attribute.split("."):  # ``Class.method``
                if not hasattr(function, name):
                    message = f'{key} "{reference}": {module_name} does not define {attribute}'
                    raise ConfigurationError(f"{message}{did_you_mean(name, dir(function))}.", hint="Correct the name.")
                function = getattr(function, name)

        @wraps(function, updated=())  # keeps the signature
        def called(*args: object, **kwargs: object) -> object:
            arguments = f" with {kwargs}" if kwargs and not args else ""
            with in_its_own_words(f'{key} "{reference}" failed when called{arguments}', "Fix it or its arguments."):
                return function(*args, **kwargs)

        yield called


@contextmanager
def in_its_own_words(action: str, hint: str) -> Iterator[None]:
    """Convert an error in the user's code to a `ConfigurationError` with the traceback lines from the user's files."""
    try:
        yield
    except NightquantError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{action}: {type(error).__name__}: {str(error).rstrip('.')}.\n{_own_lines(error)}",
            hint=hint,
            transient=is_transient(error),
        ) from error


@contextmanager
def importable(folder: str) -> Iterator[None]:
    """Let imports search a workload file's folder and the current folder first."""
    has_current = "" in sys.path
    folders = dict.fromkeys(([folder] if folder else []) + ([] if has_current else [str(Path.cwd())]))
    added = [path for path in folders if path not in sys.path]
    if folder:
        _forget_others(Path(folder))
    sys.path[:0] = added
    invalidate_caches()
    try:
        yield
    finally:
        for path in added:
            sys.path.remove(path)


def _on_cpu() -> AbstractContextManager[object]:
    """Import on the CPU, because the user's modules must not create tensors on the meta device."""
    torch = sys.modules.get("torch")
    return torch.device("cpu") if torch else nullcontext()


def _forget_others(folder: Path) -> None:
    """Drop loaded modules from other workloads' folders if `folder` has modules with the same names."""
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()} if folder.is_dir() else ()
    for name in set(names) - set(_OURS):  # keep the modules of nightquant's own packages
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None:
            continue
        root = Path(file).parents[1 if Path(file).name == "__init__.py" else 0]
        if root != folder and str(root) not in (*sys.path, str(Path.cwd())):
            for loaded in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
                del sys.modules[loaded]


def is_users_file(name: str) -> bool:
    """Return whether a source file belongs neither to nightquant nor to a library."""
    is_source = name.endswith(".py") and not name.startswith(("<", *_LIBRARIES))  # Cython's frames name .pyx files
    return is_source and "site-packages" not in Path(name).parts


def _own_lines(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(frame.filename)]
    return "".join(traceback.format_list(frames))

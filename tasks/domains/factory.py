"""The user's own models: ``package.module:callable``, importable also from the folder the command runs in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any

from torch import nn

from storage.errors import ConfigurationError
from tasks.domains.image_classification.sections import FactorySpec


def call_factory(spec: FactorySpec) -> nn.Module:
    """Import the factory and call it with ``model.arguments``.

    Raises
    ------
    ConfigurationError
        The module or the callable does not exist, the call fails, or what it gives is no ``torch.nn.Module``.
    """
    with _current_folder_importable():
        factory = _find(spec.factory)
        try:
            model = factory(**spec.arguments)
        except Exception as error:
            raise ConfigurationError(
                f'model.factory "{spec.factory}" failed when called with {spec.arguments}: '
                f"{type(error).__name__}: {error}.",
                hint=_hint(error, "Check model.arguments."),
            ) from error
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f'model.factory "{spec.factory}" gave {type(model).__name__}, not a torch.nn.Module.',
            hint="It must return the float model.",
        )
    return model


def _find(factory: str) -> Callable[..., Any]:
    module_name, _, attribute = factory.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'model.factory "{factory}": there is no module "{error.name}".',
            hint=_hint(error, f"Install it, or run from the folder that holds it (now {Path.cwd()})."),
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f'model.factory "{factory}": importing {module_name} failed: {type(error).__name__}: {error}.',
            hint=_hint(error, "Fix the module."),
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        what = "is not callable" if hasattr(module, attribute) else "does not exist"
        raise ConfigurationError(
            f'model.factory "{factory}": {module_name}.{attribute} {what}.',
            hint=_hint(module_name, "Name a function or class that returns a torch.nn.Module."),
        )
    return found  # type: ignore[no-any-return]


def _hint(missing: str | Exception, otherwise: str) -> str:
    """Say that a module of the user's project is hidden by a package of ours, or `otherwise`."""
    module = missing if isinstance(missing, str) else isinstance(missing, ImportError) and missing.name
    package = (module or "").partition(".")[0]
    if package not in ("flows", "tasks", "storage"):
        return otherwise
    return (
        f'nightquant has a package "{package}" itself, which hides the one of that name in your project: rename yours, '
        "or install it under another name."
    )


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """Put the current folder first on the path, as ``python -m`` does and an installed console command does not."""
    folder = str(Path.cwd())
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    invalidate_caches()
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)

"""The code that a model consists of: what, once edited, makes every artifact of that model anew."""

from __future__ import annotations

import inspect
from sys import modules
from types import ModuleType

from torch import nn

from tasks.models import BUILDERS
from tasks.workload.model import FactorySpec, Model


def model_sources(model: nn.Module, spec: Model) -> list[ModuleType]:
    """Modules that build `model` and define the classes of its parts; for the user's own, the factory's as well.

    torch's are left out, for its version is part of every digest. Of functions that a model calls from further modules
    nothing is known here.
    """
    names = {type(part).__module__ for part in model.modules()} | {BUILDERS[spec.kind].partition(":")[0]}
    if isinstance(spec, FactorySpec):
        names.add(spec.factory.partition(":")[0])
    own = (modules[name] for name in sorted(names) if name.partition(".")[0] != "torch")
    return [module for module in own if _has_source(module)]


def _has_source(module: ModuleType) -> bool:
    try:
        inspect.getsource(module)
    except (OSError, TypeError):  # compiled
        return False
    return True

"""Coverage: which modules with parameters of their own were quantized, and why the others were not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from torch import nn

from storage.errors import QuantizationError
from tasks.refs import ModuleCoverage


@dataclass(frozen=True)
class Leaf:
    """A module that has parameters of its own; `parameters` counts their scalars."""

    name: str
    type: str
    parameters: int


def leaves_of(model: nn.Module) -> tuple[Leaf, ...]:
    """Every module of the float model that has parameters of its own, in the model's order."""
    counted = (
        Leaf(name, type(module).__name__, sum(parameter.numel() for parameter in module.parameters(recurse=False)))
        for name, module in model.named_modules()
    )
    return tuple(leaf for leaf in counted if leaf.parameters)


def cover(leaves: Iterable[Leaf], why_float: Callable[[Leaf], str]) -> tuple[ModuleCoverage, ...]:
    """One row per leaf; `why_float` says why a leaf stayed float, "" where it was quantized."""
    rows = ((leaf, why_float(leaf)) for leaf in leaves)
    return tuple(
        ModuleCoverage(
            module=leaf.name, type=leaf.type, parameters=leaf.parameters, quantized=not reason, reason=reason
        )
        for leaf, reason in rows
    )


def excluded_modules(model: nn.Module, exclude: Collection[str]) -> frozenset[str]:
    """Paths of the excluded modules and of everything in them.

    Raises
    ------
    QuantizationError
        The model has no module of such a name; lists them all, and names that are close.
    """
    paths = [path for path, _ in model.named_modules() if path]
    unknown = [name for name in exclude if name not in paths]
    if unknown:
        near = {close for name in unknown for close in get_close_matches(name, paths)}
        raise QuantizationError(
            f"exclude names modules that {type(model).__name__} does not have: {', '.join(unknown)}.",
            hint=f"Close to them: {', '.join(sorted(near))}." if near else f"It has: {', '.join(sorted(paths)[:40])}.",
        )
    return frozenset(path for path in paths if is_within(path, exclude))


def is_within(path: str, modules: Iterable[str]) -> bool:
    """Whether the module `path` is one of `modules` or lies in one of them."""
    return any(f"{path}.".startswith(f"{other}.") for other in modules)

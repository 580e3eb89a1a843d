"""Coverage: which modules with parameters of their own were quantized, and why the others were not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch

from storage.errors import QuantizationError
from tasks.refs import ModuleCoverage


@dataclass(frozen=True)
class Leaf:
    """A module that has parameters of its own; `parameters` counts their scalars."""

    name: str
    type: str
    parameters: int


def leaves_of(model: torch.nn.Module) -> tuple[Leaf, ...]:
    """Every module of the float model that has parameters of its own, in the model's order."""
    counted = (
        Leaf(name, type(module).__name__, sum(parameter.numel() for parameter in module.parameters(recurse=False)))
        for name, module in model.named_modules()
    )
    return tuple(leaf for leaf in counted if leaf.parameters)


def cover(
    leaves: Iterable[Leaf], quantized: Collection[str], reasons: Mapping[str, str], otherwise: str
) -> tuple[ModuleCoverage, ...]:
    """One row per leaf.

    Parameters
    ----------
    quantized
        Names of the leaves that were quantized.
    reasons
        Why a leaf stayed float, by name.
    otherwise
        Why the leaves that `reasons` does not name stayed float.
    """
    return tuple(
        ModuleCoverage(
            module=leaf.name,
            type=leaf.type,
            parameters=leaf.parameters,
            quantized=leaf.name in quantized,
            reason="" if leaf.name in quantized else reasons.get(leaf.name, otherwise),
        )
        for leaf in leaves
    )


def excluded_modules(model: torch.nn.Module, exclude: Iterable[str]) -> frozenset[str]:
    """Names of the excluded modules and of everything within them.

    Raises
    ------
    QuantizationError
        The model has no module of such a name.
    """
    names = [name for name, _ in model.named_modules() if name]
    excluded: set[str] = set()
    for wanted in exclude:
        if wanted not in names:
            raise QuantizationError(
                f'The recipe excludes the module "{wanted}", which the model does not have.',
                hint=f"Its modules are: {', '.join(names)}.",
            )
        excluded.update(name for name in names if name == wanted or name.startswith(f"{wanted}."))
    return frozenset(excluded)

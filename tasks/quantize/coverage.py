"""Which modules with parameters of their own are quantized and why the others are not, also of a spec that names types.

What was quantized is a model's coverage.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import ClassVar

from torch import Tensor, nn

from storage.errors import QuantizationError, did_you_mean
from tasks.quantize.base import Converted, Converter
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec
from tasks.refs import ModuleCoverage


def leaves_of(model: nn.Module) -> tuple[ModuleCoverage, ...]:
    """Every module of the float model that has parameters of its own, in the model's order; none quantized yet."""
    leaves = (
        ModuleCoverage(
            module=name,
            type=type(module).__name__,
            parameters=sum(parameter.numel() for parameter in module.parameters(recurse=False)),
            quantized=False,
        )
        for name, module in model.named_modules()
    )
    return tuple(leaf for leaf in leaves if leaf.parameters)


def cover(leaves: Iterable[ModuleCoverage], why_float: Callable[[ModuleCoverage], str]) -> tuple[ModuleCoverage, ...]:
    """Fill in what became of the leaves; `why_float` says why a leaf stayed float, "" where it was quantized."""
    return tuple(
        leaf.model_copy(update={"quantized": not reason, "reason": reason})
        for leaf, reason in ((leaf, why_float(leaf)) for leaf in leaves)
    )


def in_words(coverage: Iterable[ModuleCoverage], named: int = 5) -> Iterator[str]:
    """Yield a line for each reason for which modules stay float, with the first `named` modules."""
    left = sorted((module for module in coverage if not module.quantized), key=lambda module: module.reason)
    for reason, alike in groupby(left, key=lambda module: module.reason):
        names = [f"{module.module or 'the model'} ({module.type})" for module in alike]
        shown = names[:named] + [f"{len(names) - named} more"] * (len(names) > named)
        yield f"{', '.join(shown)}: {reason}"


def unnamed(kind: str) -> str:
    """Say why a module stays float whose type the recipe does not name."""
    return f"the recipe does not name the type {kind}"


def excluded_modules(model: nn.Module, exclude: Collection[str]) -> frozenset[str]:
    """Paths of the excluded modules and of everything in them.

    Raises
    ------
    QuantizationError
        The model has no module of such a name; proposes those that are close, and lists them all.
    """
    paths = [path for path, _ in model.named_modules() if path]
    unknown = [name for name in exclude if name not in paths]
    if unknown:
        named = ", ".join(f"{name}{did_you_mean(name, paths)}" for name in unknown)
        raise QuantizationError(
            f"exclude names modules that {type(model).__name__} does not have: {named}.",
            hint=f"It has: {', '.join(sorted(paths)[:40])}.",
        )
    return frozenset(path for path in paths if is_within(path, exclude))


def is_within(path: str, modules: Iterable[str]) -> bool:
    """Whether the module `path` is one of `modules` or lies in one of them."""
    return any(f"{path}.".startswith(f"{other}.") for other in modules)


class ModuleConverter(Converter):
    """Replaces every module whose type a spec names and that it does not exclude; this needs no data."""

    subclass: ClassVar[str]  # why a subclass of a named type stays float: one "which ..."

    @abstractmethod
    def lack(self, module: nn.Module, spec: Spec) -> str:
        """Say why a module of a named type has no kernel, "" if it has one."""

    @abstractmethod
    def replace(self, model: nn.Module, paths: Collection[str], spec: Spec) -> nn.Module:
        """Quantize the modules at these paths, whatever weights they have."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model; raise `QuantizationError` if that quantizes nothing, or none of what is asked for."""
        reasons = self._why_float(model, spec)
        coverage = cover(leaves_of(model), lambda leaf: reasons[leaf.module])
        quantized = {leaf.type for leaf in coverage if leaf.quantized}
        if not quantized or ("Embedding" in spec.layers and "Embedding" not in quantized):
            what = "no embedding" if quantized else "nothing"
            why = "; ".join(in_words(coverage, named=2))
            raise QuantizationError(f'The recipe "{spec.recipe.name}" quantizes {what} of the model.', hint=f"{why}.")
        return Converted(self.skeleton(model, spec, "", source.example_inputs), "", coverage)

    def skeleton(self, model: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Replace the modules."""
        paths = [path for path, reason in self._why_float(model, spec).items() if not reason]
        return self.replace(model, paths, spec).eval()

    def _why_float(self, model: nn.Module, spec: Spec) -> dict[str, str]:
        types: set[type[nn.Module]] = {getattr(nn, name) for name in spec.layers}
        excluded = excluded_modules(model, spec.recipe.exclude)

        def why(path: str, module: nn.Module) -> str:
            if path in excluded:
                return "excluded by the recipe"
            if type(module) not in types:
                kind = next((kind.__name__ for kind in types if isinstance(module, kind)), "")
                return f"a subclass of {kind}, which {self.subclass}" if kind else unnamed(type(module).__name__)
            return self.lack(module, spec) if path else "it is the whole model, which cannot be replaced"

        return {path: why(path, module) for path, module in model.named_modules()}

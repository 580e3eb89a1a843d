"""Coverage: which modules with parameters of their own are quantized, and why the others are not.

`ModuleConverter` is the base class of converters for specs that name module types.
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
    """Return the float model's modules with parameters of their own, in the model's order; none is quantized yet."""
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
    """Complete the leaves; `why_float` returns why a leaf stayed float, or "" if it was quantized."""
    return tuple(
        leaf.model_copy(update={"quantized": not reason, "reason": reason})
        for leaf, reason in ((leaf, why_float(leaf)) for leaf in leaves)
    )


def in_words(coverage: Iterable[ModuleCoverage], named: int = 5) -> Iterator[str]:
    """Yield a line for each reason why modules stay float, with the first `named` modules."""
    floats = sorted((module for module in coverage if not module.quantized), key=lambda module: module.reason)
    for reason, modules in groupby(floats, key=lambda module: module.reason):
        names = [f"{module.module or 'the model'} ({module.type})" for module in modules]
        shown = names[:named] + [f"{len(names) - named} more"] * (len(names) > named)
        yield f"{', '.join(shown)}: {reason}"


def unnamed(kind: str) -> str:
    """Return the reason why a module stays float if the recipe does not name its type."""
    return f"the recipe does not name the type {kind}"


def excluded_modules(model: nn.Module, exclude: Collection[str]) -> frozenset[str]:
    """Return the paths of the excluded modules and of all modules in them.

    Raises
    ------
    QuantizationError
        The model does not have an excluded module; the message suggests similar names and lists all modules.
    """
    paths = [path for path, _ in model.named_modules() if path]
    unknown = [name for name in exclude if name not in paths]
    if unknown:
        named = ", ".join(f"{name}{did_you_mean(name, paths)}" for name in unknown)
        raise QuantizationError(
            f"`exclude` names modules that {type(model).__name__} does not have: {named}.",
            hint=f"Choose from its modules: {', '.join(sorted(paths)[:40])}.",
        )
    return frozenset(path for path in paths if is_within(path, exclude))


def is_within(path: str, modules: Iterable[str]) -> bool:
    """Return whether the module `path` is one of `modules` or inside one of them."""
    return any(f"{path}.".startswith(f"{module}.") for module in modules)


class ModuleConverter(Converter):
    """Replaces every module whose type a spec names, except excluded modules; this needs no data."""

    subclass: ClassVar[str]  # why a subclass of a named type stays float, to follow "which"

    @abstractmethod
    def lack(self, module: nn.Module, spec: Spec) -> str:
        """Return why a module of a named type has no kernel, or "" if it has one."""

    @abstractmethod
    def replace(self, model: nn.Module, paths: Collection[str], spec: Spec) -> nn.Module:
        """Quantize the modules at these paths, regardless of their weights."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model; raise `QuantizationError` if this quantizes nothing, or no embedding as requested."""
        reasons = self._why_float(model, spec)
        coverage = cover(leaves_of(model), lambda leaf: reasons[leaf.module])
        quantized = {leaf.type for leaf in coverage if leaf.quantized}
        if not quantized or ("Embedding" in spec.layers and "Embedding" not in quantized):
            result = "no embedding" if quantized else "nothing"
            hint = "; ".join(in_words(coverage, named=2)) + "."
            raise QuantizationError(f'The recipe "{spec.recipe.name}" quantizes {result} of the model.', hint=hint)
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
            return self.lack(module, spec) if path else "the model itself cannot be replaced"

        return {path: why(path, module) for path, module in model.named_modules()}

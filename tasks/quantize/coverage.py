"""Determine which modules with parameters are quantized, and why the remaining modules stay in float.

`ModuleConverter` is the base class of converters for specs that name module types; `PlainConverter` quantizes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor, nn

from storage.errors import QuantizationError, did_you_mean
from tasks.data.outputs import tensors_of
from tasks.quantize.engine import require_bfloat16
from tasks.quantize.source import Converted, Converter, ModelSource
from tasks.quantize.spec import EVERY, Spec
from tasks.values.refs import ModuleCoverage, in_words


def leaves_of(model: nn.Module) -> tuple[ModuleCoverage, ...]:
    """Return a coverage entry, marked as not quantized, for each module that has its own parameters."""
    leaves = []
    for name, module in model.named_modules():
        if count := sum(parameter.numel() for parameter in module.parameters(recurse=False)):
            leaves.append(ModuleCoverage(module=name, type=type(module).__name__, parameters=count, quantized=False))
    return tuple(leaves)


def cover(leaves: Iterable[ModuleCoverage], why_float: Callable[[ModuleCoverage], str]) -> tuple[ModuleCoverage, ...]:
    """Mark each leaf as quantized if `why_float` returns ""; otherwise, record the returned reason."""

    def marked(leaf: ModuleCoverage) -> ModuleCoverage:
        reason = why_float(leaf)
        return leaf.model_copy(update={"quantized": not reason, "reason": reason})

    return tuple(map(marked, leaves))


def cover_products(
    model: nn.Module, spec: Spec, int8: Collection[str], folded: Mapping[str, str], lack: str
) -> tuple[ModuleCoverage, ...]:
    """Mark the modules in `int8` and those `folded` into them as quantized; raise `QuantizationError` if none are.

    `lack` is the reason given for other modules of types in the spec; it contains ``{type}``.
    """
    excluded = excluded_modules(model, spec.exclude)

    def why_float(leaf: ModuleCoverage) -> str:
        head = folded.get(leaf.module, leaf.module)
        if spec.why_float or head in int8:
            return spec.why_float
        if not excluded.isdisjoint((leaf.module, head)):
            return "excluded by the recipe"
        return lack.format(type=leaf.type) if {EVERY, leaf.type} & spec.layers.keys() else unnamed(leaf.type)

    coverage = cover(leaves_of(model), why_float)
    if spec.layers and not int8:
        raise nothing_quantized(spec, coverage)
    return coverage


def unnamed(kind: str) -> str:
    """Return the reason for leaving a module in float: the recipe does not name the type `kind`."""
    return f"the recipe does not name the type {kind}"


def nothing_quantized(spec: Spec, coverage: Iterable[ModuleCoverage], kind: str = "module") -> QuantizationError:
    """Return the error of a recipe that does not quantize any module of a kind; its hint lists the reasons."""
    message = f'The "{spec.name}" recipe does not quantize any {kind} in the model.'
    return QuantizationError(message, hint="; ".join(in_words(coverage, named=2)) + ".")


def excluded_modules(model: nn.Module, exclude: Collection[str]) -> frozenset[str]:
    """Return the paths of the excluded modules and their submodules; raise `QuantizationError` for unknown names."""
    paths = [path for path, _ in model.named_modules() if path]
    unknown = [name for name in exclude if name not in paths]
    if unknown:
        named = ", ".join(f"{name}{did_you_mean(name, paths)}" for name in unknown)
        raise QuantizationError(
            f"`exclude` names modules that {type(model).__name__} does not have: {named}.",
            hint=f"Choose from the model's modules: {', '.join(sorted(paths)[:40])}.",
        )
    return frozenset(path for path in paths if is_within(path, exclude))


def own_behavior(module: nn.Module) -> str:
    """Return what a module does beyond the `forward` of its type, for example ``"has a forward hook"``, or ""."""
    if "forward" in vars(module):
        return "has a `forward` of its own"
    if module._forward_pre_hooks:
        return "has a forward pre-hook"
    return "has a forward hook" if module._forward_hooks else ""


def is_within(path: str, modules: Iterable[str]) -> bool:
    """Return whether the module at `path` is one of `modules` or is inside one of them."""
    return any(f"{path}.".startswith(f"{module}.") for module in modules)


class ModuleConverter(Converter):
    """A converter that does not need data and replaces modules of the types in the spec, except excluded modules."""

    subclass: ClassVar[str]  # reason that subclasses of a named type stay in float, phrased to follow "which"

    @abstractmethod
    def lack(self, module: nn.Module, spec: Spec) -> str:
        """Return the reason that a module has no kernel although its type is in the spec, or "" if a kernel exists."""

    @abstractmethod
    def replace(self, model: nn.Module, paths: Collection[str], spec: Spec) -> nn.Module:
        """Quantize the modules at `paths`, whatever values their weights have."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model; raise `QuantizationError` if no module, or no named embedding, was quantized."""
        reasons = self._why_float(model, spec)
        coverage = cover(leaves_of(model), lambda leaf: reasons[leaf.module])
        quantized = {leaf.type for leaf in coverage if leaf.quantized}
        if not quantized or ("Embedding" in spec.layers and "Embedding" not in quantized):
            raise nothing_quantized(spec, coverage, "embedding" if quantized else "module")
        return Converted(self.skeleton(model, spec, source.example_inputs), coverage)

    def skeleton(self, model: nn.Module, spec: Spec, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Replace the modules."""
        paths = [path for path, reason in self._why_float(model, spec).items() if not reason]
        _leave_fast_path(model, paths)
        return self.replace(model, paths, spec).eval()

    def _why_float(self, model: nn.Module, spec: Spec) -> dict[str, str]:
        types: set[type[nn.Module]] = {getattr(nn, name) for name in spec.layers}
        excluded = excluded_modules(model, spec.exclude)

        def why(path: str, module: nn.Module) -> str:
            if path in excluded:
                return "excluded by the recipe"
            if type(module) not in types:
                kind = next((kind.__name__ for kind in types if isinstance(module, kind)), "")
                return f"a subclass of {kind}, which {self.subclass}" if kind else unnamed(type(module).__name__)
            if not path:
                return "the model itself cannot be replaced"
            if behavior := own_behavior(module):
                return f"the module {behavior}"
            if getattr(module, "max_norm", None) is not None:
                return "max_norm changes weights in every call"
            return self.lack(module, spec)

        return {path: why(path, module) for path, module in model.named_modules()}


def _leave_fast_path(model: nn.Module, quantized: Iterable[str]) -> None:
    """Let transformer encoders call the quantized modules within, instead of one fused kernel for float weights."""
    for above in {above for path in quantized for above in accumulate(path.split("."), "{}.{}".format)}:
        module = model.get_submodule(above)
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # 0 stands for an activation that the fused kernel lacks
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


class ChannelsLast(nn.Module):
    """A model that uses the channels-last memory format for its weights and for images (inputs with four axes)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # Declare the type, because torch's type stubs accept `memory_format` only for tensors.
        self.model: nn.Module = model.to(memory_format=torch.channels_last)

    def forward(self, *inputs: Tensor) -> object:
        """Convert images to the channels-last memory format, and call the model."""
        return self.model(
            *(item.contiguous(memory_format=torch.channels_last) if item.dim() == 4 else item for item in inputs)
        )


class Cast(nn.Module):
    """A model that computes in `dtype`, with float32 inputs and outputs."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model: nn.Module = model.to(dtype)
        self.dtype = dtype

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Cast floating-point inputs to `dtype`, call the model, and return float32 outputs."""
        cast = (item.to(self.dtype) if item.is_floating_point() else item for item in inputs)
        return tuple(item.float() if item.is_floating_point() else item for item in tensors_of(self.model(*cast)))


class PlainConverter(Converter):
    """A converter that gives float models a spec's dtype and memory format."""

    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Wrap the model; raise `UnavailableError` if the processor can only emulate bfloat16."""
        if spec.arithmetic == "bfloat16":
            require_bfloat16(spec.name)
        coverage = cover(leaves_of(model), lambda _: spec.why_float)
        return Converted(self.skeleton(model, spec, source.example_inputs), coverage)

    def skeleton(self, model: nn.Module, spec: Spec, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Wrap the model if the spec requires the channels-last memory format, or a dtype other than float32."""
        if spec.arithmetic != "float32":
            model = Cast(model, getattr(torch, spec.arithmetic))
        return ChannelsLast(model) if spec.memory_format == "channels-last" else model

"""Coverage of statically quantized models: which float module ended up in which quantized one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from tasks.quantize.coverage import Leaf, cover
from tasks.quantize.embedding import FourBitEmbedding
from tasks.quantize.graph import unsupported as unsound
from tasks.quantize.graph.borders import FloatInside, QuantizedInside
from tasks.quantize.graph.plan import Plan
from tasks.refs import ModuleCoverage


def attribute(leaves: Sequence[Leaf], converted: nn.Module, plan: Plan) -> tuple[ModuleCoverage, ...]:
    """One row per module of the float model that has parameters of its own.

    A module that was fused (a batch norm folded into its convolution) counts as quantized where the module that took it
    up is.

    Parameters
    ----------
    leaves
        Of the float model, before anything was fused.
    """
    found = modules_by_float_path(converted)
    head_of = {path: chain.head for chain in plan.chains for path in chain.modules}
    quantized = {leaf.name for leaf in leaves if _is_quantized(head_of.get(leaf.name, leaf.name), found)}
    reasons = {leaf.name: _reason(leaf, head_of.get(leaf.name, leaf.name), plan) for leaf in leaves}
    return cover(leaves, quantized, reasons, otherwise="")


def modules_by_float_path(converted: nn.Module) -> dict[str, nn.Module]:
    """The converted model's modules by the paths that they have in the float model."""
    inner = converted.module if isinstance(converted, QuantizedInside) else converted
    found: dict[str, nn.Module] = {}
    for path, module in inner.named_modules():
        kept = module.module if isinstance(module, FloatInside) else module
        if isinstance(kept, nn.Module):
            found.setdefault(path, kept)
    return found


def has_quantized_kernel(module: nn.Module) -> bool:
    """Whether a converted model's module computes in integers, or reads rows of them."""
    return isinstance(module, FourBitEmbedding) or ".quantized" in type(module).__module__


def _is_quantized(path: str, found: dict[str, nn.Module]) -> bool:
    module = found.get(path)
    # torchvision's own fusing leaves an Identity where a module was folded into the one before it.
    return module is not None and (isinstance(module, nn.Identity) or has_quantized_kernel(module))


def _reason(leaf: Leaf, head: str, plan: Plan) -> str:
    if because := unsound.reason(leaf.type):
        return because
    if any(path == name or path.startswith(f"{name}.") for name in plan.excluded for path in (leaf.name, head)):
        return "excluded by the recipe"
    if leaf.name in plan.outside:
        return "outside the model's own quantization stubs"
    return f"no quantized kernel for type {leaf.type}"

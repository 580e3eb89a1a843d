"""Which float module became which quantized one: coverage of models that were fused, and pairs to compare."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from tasks.quantize.coverage import cover, is_within
from tasks.quantize.dynamic_modules import FourBitEmbedding
from tasks.quantize.graph.observers import why_unsupported
from tasks.quantize.graph.plan import Plan, make_plan
from tasks.quantize.graph.prepare import FloatInside, QuantizedInside, fuse
from tasks.quantize.spec import Spec
from tasks.refs import ModuleCoverage

# Without torch.ao.nn.quantized.reference, whose modules compute in float.
_QUANTIZED_MODULES = (
    "torch.ao.nn.quantized.modules",
    "torch.ao.nn.quantized.dynamic.modules",
    "torch.ao.nn.intrinsic.quantized.modules",
    "torch.ao.nn.intrinsic.quantized.dynamic.modules",
    "tasks.quantize.int8_modules",
)


@dataclass(frozen=True)
class Pair:
    """A quantized module and the float one that computes the same.

    ``path`` is the module's in the float model; a fused one goes by the path of its first module.
    """

    path: str
    quantized: nn.Module
    float: nn.Module


def pair_with_float(
    model: nn.Module, converted: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]
) -> tuple[Pair, ...]:
    """Pair every quantized module that has weights with its float module, in the model's order.

    The float `model` has its checkpoint's weights, and is fused in place if the spec's method fuses; `converted`
    is what became of it, in the mode `graph`.
    """
    if spec.form == "graph":
        plan = make_plan(model, replace(spec, graph="fx" if graph == "fx" else "eager"), example_inputs)
        model = fuse(model, plan, is_qat=False)
    floats = dict(model.named_modules())
    return tuple(
        Pair(path, module, floats[path])
        for path, module in _modules_by_float_path(converted).items()
        if path in floats and has_quantized_kernel(module) and next(floats[path].parameters(), None) is not None
    )


def cover_fused(
    leaves: Sequence[ModuleCoverage], converted: nn.Module, plan: Plan, packed: Collection[str] = ()
) -> tuple[ModuleCoverage, ...]:
    """Fill in what became of the float model's leaves, which are those from before anything was fused.

    A module that was fused (a batch norm folded into its convolution) counts as quantized where the module that took it
    up is. So does a module whose parameters were packed for a function that forward calls; `packed` are their names.
    """
    found = _modules_by_float_path(converted)
    heads = {path: chain[0] for chain in plan.chains for path in chain}
    owners = {name.rpartition(".")[0] for name in packed}

    def why_float(leaf: ModuleCoverage) -> str:
        head = heads.get(leaf.module, leaf.module)
        # torchvision's own fusing leaves an Identity where a module was folded into the one before it.
        if head in found and (isinstance(found[head], nn.Identity) or has_quantized_kernel(found[head])):
            return ""
        if leaf.module in owners:
            return ""
        if reason := why_unsupported(leaf.type):
            return reason
        if is_within(leaf.module, plan.excluded) or is_within(head, plan.excluded):
            return "excluded by the recipe"
        if leaf.module in plan.outside:
            return "outside the model's own quantization stubs"
        return f"no quantized kernel for type {leaf.type}"

    return cover(leaves, why_float)


def has_quantized_kernel(module: nn.Module) -> bool:
    """Whether a converted model's module computes in integers, or reads rows of them."""
    return isinstance(module, FourBitEmbedding) or is_within(type(module).__module__, _QUANTIZED_MODULES)


def _modules_by_float_path(converted: nn.Module) -> dict[str, nn.Module]:
    """The converted model's modules by the paths that they have in the float model."""
    inner = converted.module if isinstance(converted, QuantizedInside) else converted
    return {
        path: module.module if isinstance(module, FloatInside) else module for path, module in inner.named_modules()
    }

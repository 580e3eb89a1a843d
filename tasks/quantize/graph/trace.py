"""Trace a model, and report operations that cannot run."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from inspect import Parameter, signature

import torch
from torch import fx, nn
from torch.fx._symbolic_trace import _assert_is_none
from torch.nn.modules.conv import _ConvNd

from storage.errors import QuantizationError
from tasks.quantize.coverage import own_behavior
from tasks.quantize.source import reason_of, refusing

# Operations that assertions in `forward` use to check shapes.
_SHAPE_CHECKS = frozenset(
    {getattr, *(vars(operator)[name] for name in ("eq", "ne", "lt", "le", "gt", "ge", "mod", "getitem"))}
)
# The tracer checks with these functions that parameters have their defaults.
_ASSERTIONS = (torch._assert, _assert_is_none)
_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def traced_module(model: nn.Module, inputs: int, leaves: Collection[str] = ()) -> fx.GraphModule:
    """Trace a model for calls with `inputs` inputs, without entering `leaves`; other parameters keep their defaults."""
    further = [each for each in list(signature(model.forward).parameters.values())[inputs:] if each.kind in _NAMED]
    defaults = {each.name: each.default for each in further if each.default is not Parameter.empty}
    hint = "Make the control flow independent of tensor values, or use another method or runtime."
    with refusing(f"{type(model).__name__} cannot be traced symbolically", hint):
        graph = _Tracer(leaves).trace(model, defaults)
    _remove_idle_nodes(graph, model)
    for node in list(graph.nodes)[inputs : inputs + len(further)]:
        if node.op == "placeholder" and not node.users:
            graph.erase_node(node)  # torch names the placeholder of a default differently
    return fx.GraphModule(model, graph)


def without_floats(traced: fx.GraphModule, inputs: Iterable[torch.Tensor]) -> frozenset[str]:
    """Return the names of the nodes whose results are tensors, but not of a floating-point type."""
    training = {module: module.training for module in traced.modules()}
    recorder = _Interpreter(traced.eval())
    with torch.no_grad():
        recorder.run(*inputs)
    for module, mode in training.items():
        module.training = mode
    return frozenset(recorder.others)


def _remove_idle_nodes(graph: fx.Graph, model: nn.Module) -> None:
    """Remove assertions, the shape operations that only assertions use, and identity modules, in place.

    They compute no values, but keep torch from fusing adjacent nodes. For example, timm's norms assert their inputs'
    rank.
    """
    for node in reversed(graph.nodes):
        path = str(node.target)
        if node.target in _ASSERTIONS or (node.target in _SHAPE_CHECKS and not node.users):
            graph.erase_node(node)
        elif node.op != "call_module" or path.endswith("activation_post_process"):
            continue  # an Identity named "activation_post_process" marks a FloatFunctional
        elif type(model.get_submodule(path)) is nn.Identity:
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)


def is_leaf(module: nn.Module) -> bool:
    """Return whether tracing treats a module as a leaf: a torch module other than `nn.Sequential`."""
    return type(module).__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, nn.Sequential)


def try_out(model: fx.GraphModule, example_inputs: Mapping[str, torch.Tensor]) -> None:
    """Call a converted model once; if the call fails, name the module or the operation."""
    run = _Interpreter(model)  # a graph module prints a traceback if a direct call fails
    try:
        with torch.no_grad():
            run.run(*example_inputs.values())
    except Exception as error:
        place = f"in the operation {run.operation}, in or after module {run.module_path}"
        raise QuantizationError(f"The converted model cannot run: {reason_of(error)} {place}.") from error


class _Tracer(fx.Tracer):
    def __init__(self, leaves: Collection[str]) -> None:
        super().__init__()
        self._leaves = frozenset(leaves)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self._leaves:
            return True
        stays_float = isinstance(m, nn.RNNBase | nn.RNNCellBase) or bool(m._modules)
        return super().is_leaf_module(m, module_qualified_name) and (stays_float or not _beyond_kernel(m))


def _beyond_kernel(module: nn.Module) -> bool:
    """Return whether a module does more than its int8 kernel; the tracer makes such work operations of the graph."""
    if isinstance(module, _ConvNd) and (module.padding_mode not in ("zeros", "reflect") or pads_unevenly(module)):
        return True
    return bool(own_behavior(module))


def pads_unevenly(conv: _ConvNd) -> bool:
    """Return whether a convolution pads one side more than the other, which int8 kernels cannot do."""
    reaches = [dilation * (size - 1) for size, dilation in zip(conv.kernel_size, conv.dilation, strict=True)]
    return conv.padding == "same" and any(reach % 2 for reach in reaches)


class _Interpreter(fx.Interpreter):
    """An interpreter that records the last operation and module, and the nodes whose results are not floats."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.others: list[str] = []
        self.operation = self.module_path = ""

    def run_node(self, n: fx.Node) -> object:
        self.operation = n.name
        if n.op == "call_module":
            self.module_path = str(n.target)
        result = super().run_node(n)
        first = next(iter(result), None) if isinstance(result, tuple | list) else result
        if isinstance(first, torch.Tensor) and not first.is_floating_point():
            self.others.append(n.name)
        return result

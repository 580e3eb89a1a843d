"""Trace a model, and report operations that cannot run."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature

import torch
from torch import fx, nn
from torch.fx._symbolic_trace import _assert_is_none
from torch.nn.modules.conv import _ConvNd

from storage.errors import NightquantError, QuantizationError, first_line
from tasks.libraries import place_of
from tasks.quantize.carried import own_behavior
from tasks.quantize.source import refuse_non_finite

# Operations that assertions in `forward` use to check shapes.
_SHAPE_CHECKS = frozenset(
    {getattr, *(vars(operator)[name] for name in ("eq", "ne", "lt", "le", "gt", "ge", "mod", "getitem"))}
)
# The tracer checks with these functions that parameters have their defaults.
_ASSERTIONS = (torch._assert, _assert_is_none)
_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_NO_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend")


def traced_module(model: nn.Module, inputs: int, leaves: Collection[str] = ()) -> fx.GraphModule:
    """Trace a model for calls with `inputs` inputs; further parameters keep their defaults.

    Tracing does not enter modules in `leaves`.
    """
    further = [each for each in list(signature(model.forward).parameters.values())[inputs:] if each.kind in _NAMED]
    defaults = {each.name: each.default for each in further if each.default is not Parameter.empty}
    try:
        graph = _Tracer(leaves).trace(model, defaults)
    except Exception as error:
        raise QuantizationError(
            f"{type(model).__name__} cannot be traced symbolically: {first_line(error)}{place_of(error)}.",
            hint="Make the control flow independent of tensor values, or use another method or runtime.",
        ) from error
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
    """Return whether tracing treats a module as a leaf: a module of torch other than `nn.Sequential`."""
    return type(module).__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, nn.Sequential)


@contextmanager
def refusing(step: str, model: str) -> Iterator[None]:
    """Re-raise torch's errors as `QuantizationError`; `step` is ``"prepared"``, ``"calibrated"`` or ``"converted"``."""
    try:
        yield
    except NightquantError:
        raise
    except Exception as error:
        raise QuantizationError(f"{model} cannot be {step}: {_describe(error)}{place_of(error)}.") from error


def try_out(model: fx.GraphModule, example_inputs: Mapping[str, torch.Tensor]) -> None:
    """Call a converted model once with its example inputs."""
    run = _Interpreter(model)  # a graph module prints a traceback if a direct call fails
    try:
        with torch.no_grad():
            output = run.run(*example_inputs.values())
    except Exception as error:
        message = f"The converted model cannot run: {_describe(error)} in {run.place()}."
        raise QuantizationError(message) from error
    refuse_non_finite(output, "the example inputs after conversion")


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
    padded = isinstance(module, _ConvNd) and module.padding_mode not in ("zeros", "reflect")
    return padded or bool(own_behavior(module))


class _Interpreter(fx.Interpreter):
    """An interpreter that records the last operation that ran, and the nodes whose results are not of a float type."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.others: list[str] = []
        self.last = next(iter(module.graph.nodes))

    def run_node(self, n: fx.Node) -> object:
        self.last = n
        result = super().run_node(n)
        first = next(iter(result), None) if isinstance(result, tuple | list) else result
        if isinstance(first, torch.Tensor) and not first.is_floating_point():
            self.others.append(n.name)
        return result

    def place(self) -> str:
        """Describe the last operation by the module that it calls, or by the operation and the preceding module."""
        above = [self.last]
        for node in above:
            if node.op == "call_module":
                module = f"module {node.target} ({type(self.module.get_submodule(str(node.target))).__name__})"
                return module if node is self.last else f"{self.last.name} after {module}"
            above += [source for source in node.all_input_nodes if source not in above]
        return f"the operation {self.last.name}"


def _describe(error: Exception) -> str:
    missing = _NO_KERNEL.search(str(error))
    return f"{missing[1]} has no kernel for {missing[2]} tensors" if missing else first_line(error)

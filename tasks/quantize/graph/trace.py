"""Trace a model, record the rank of each node's result, and report operations that cannot run."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature

import torch
from torch import fx, nn
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.fx._symbolic_trace import _assert_is_none
from torch.nn.modules.conv import _ConvNd

from storage.errors import NightquantError, QuantizationError, first_line
from tasks.libraries import place_of
from tasks.quantize.carried import own_behavior
from tasks.quantize.graph.functional import with_plain_layers
from tasks.quantize.source import refuse_non_finite

_MODES = {"eager": "eager mode", "fx": "FX graph mode"}
# Operations that assertions in `forward` use to check shapes.
_SHAPE_CHECKS = frozenset(
    {getattr, *(vars(operator)[name] for name in ("eq", "ne", "lt", "le", "gt", "ge", "mod", "getitem"))}
)
# The tracer checks with these functions that parameters have their defaults.
_ASSERTIONS = (torch._assert, _assert_is_none)
_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_NO_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend")


@dataclass(frozen=True)
class Traced:
    """A symbolically traced model.

    ``ranks`` maps each node whose first result is a floating-point tensor to the rank of that tensor. ``calls`` counts
    the calls to each module. ``plain`` contains the paths of layers whose parameters `forward` passes to functions.
    """

    graph: fx.Graph
    modules: Mapping[str, nn.Module]
    ranks: Mapping[fx.Node, int]
    calls: Mapping[str, int]
    plain: frozenset[str] = frozenset()

    def module_of(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls, or None if the node does not call a module."""
        return self.modules[str(node.target)] if node.op == "call_module" else None


def trace(model: nn.Module, example_inputs: Mapping[str, torch.Tensor], leaves: Collection[str] = ()) -> Traced:
    """Trace a model in evaluation mode without changing it, and run the graph; do not trace into modules in `leaves`.

    Raises
    ------
    QuantizationError
        The model cannot be traced, for example because its control flow depends on tensor values. The error is also
        raised if the graph cannot run, for example because tracing assumed that an optional parameter is not None.
    """
    try:
        traced, plain = traced_module(model, len(example_inputs), leaves)
    except Exception as error:
        raise QuantizationError(
            f"{type(model).__name__} cannot be traced symbolically: {first_line(error)}{place_of(error)}.",
            hint="Make the control flow independent of tensor values, or add QuantStub, DeQuantStub and a "
            "fuse_model(is_qat) method, as in torchvision's quantizable models.",
        ) from error
    recorder = _Interpreter(traced)
    with torch.no_grad():
        try:
            recorder.run(*example_inputs.values())
        except Exception as error:
            raise QuantizationError(
                f"The traced graph of {type(model).__name__} cannot run: {first_line(error)}.",
                hint="In the model factory, wrap the model so that `forward` takes only the inputs that the data "
                "provides.",
            ) from error
    calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    # Take only called modules from `traced`, because every other module in `traced` is an empty container.
    modules = dict(model.named_modules()) | {name: traced.get_submodule(name) for name in calls}
    return Traced(traced.graph, modules, recorder.ranks, calls, plain)


def traced_module(
    model: nn.Module, inputs: int, leaves: Collection[str] = (), *, training: bool = False
) -> tuple[fx.GraphModule, frozenset[str]]:
    """Trace a model for calls with `inputs` inputs, and return the result of `with_plain_layers`.

    Further parameters keep their defaults. Tracing does not enter modules in `leaves`.
    """
    further = [each for each in list(signature(model.forward).parameters.values())[inputs:] if each.kind in _NAMED]
    defaults = {each.name: each.default for each in further if each.default is not Parameter.empty}
    graph = _Tracer(leaves).trace(model, defaults)
    _remove_idle_nodes(graph, model)
    for node in list(graph.nodes)[inputs : inputs + len(further)]:
        if node.op == "placeholder" and not node.users:
            graph.erase_node(node)  # torch names the placeholder of a default differently
    return with_plain_layers(model, graph, training=training)


def without_floats(traced: fx.GraphModule, inputs: Iterable[torch.Tensor]) -> frozenset[str]:
    """Return the names of the nodes whose results are tensors, but not of a floating-point type."""
    training = {module: module.training for module in traced.modules()}
    recorder = _Interpreter(traced.eval())
    with torch.no_grad():
        recorder.run(*inputs)
    for module, mode in training.items():
        module.training = mode
    return frozenset(node.name for node in recorder.others)


def _remove_idle_nodes(graph: fx.Graph, model: nn.Module) -> None:
    """Remove assertions, the shape operations that only assertions use, and identity modules, in place.

    Assertions and identity modules do not compute values, but keep torch from fusing adjacent nodes. For example,
    timm's norms assert the rank of their inputs.
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


def beyond_kernel(module: nn.Module) -> str:
    """Return what a module does that its int8 kernel does not, or "" if there is nothing.

    The tracer makes such work an operation of the graph.
    """
    if isinstance(module, _ConvNd) and module.padding_mode not in ("zeros", "reflect"):
        return f'has padding_mode="{module.padding_mode}"'
    return own_behavior(module)


def is_leaf(module: nn.Module) -> bool:
    """Return whether tracing treats a module as a leaf: a module of torch other than `nn.Sequential`."""
    return type(module).__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, nn.Sequential)


def operation_name(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


@contextmanager
def refusing(step: str, model: str, graph: str) -> Iterator[None]:
    """Re-raise torch's errors as `QuantizationError`; `step` is ``"prepared"``, ``"calibrated"`` or ``"converted"``.

    Raises
    ------
    QuantizationError
        The message contains the step, the model's type, the graph mode and the first line of torch's message.
    """
    try:
        yield
    except NightquantError:
        raise
    except Exception as error:
        raise QuantizationError(
            f"{model} cannot be {step} in {_MODES[graph]}: {_describe(error)}{place_of(error)}."
        ) from error


def try_out(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> None:
    """Call a converted model once with its example inputs.

    Raises
    ------
    QuantizationError
        An operation lacks a quantized kernel (the message names the module), or the output is not finite.
    """
    # Use an interpreter, because a graph module prints a traceback if a direct call fails.
    run = _Interpreter(model) if isinstance(model, fx.GraphModule) else None
    try:
        with torch.no_grad():
            output = (run.run if run else model)(*example_inputs.values())
    except Exception as error:
        # The path of a module in a `QuantizedInside` wrapper begins with ``module.``.
        place = f" in {run.place()}" if run else place_of(error).replace("module module.", "module ")
        raise QuantizationError(f"The converted model cannot run: {_describe(error)}{place}.") from error
    refuse_non_finite(output, "the example inputs after conversion")


class _Tracer(fx.Tracer):
    def __init__(self, leaves: Collection[str]) -> None:
        super().__init__()
        self._leaves = frozenset(leaves)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, QuantStub | DeQuantStub) or module_qualified_name in self._leaves:
            return True
        stays_float = isinstance(m, nn.RNNBase | nn.RNNCellBase) or bool(m._modules)
        return super().is_leaf_module(m, module_qualified_name) and (stays_float or not beyond_kernel(m))


class _Interpreter(fx.Interpreter):
    """An interpreter that records the last operation that ran, and the rank of each node's first result."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.ranks: dict[fx.Node, int] = {}
        self.others: list[fx.Node] = []  # nodes whose first result is a tensor that is not of a floating-point type
        self.last = next(iter(module.graph.nodes))

    def run_node(self, n: fx.Node) -> object:
        self.last = n
        result = super().run_node(n)
        first = next(iter(result), None) if isinstance(result, tuple | list) else result
        if isinstance(first, torch.Tensor):
            if first.is_floating_point():
                self.ranks[n] = first.dim()
            else:
                self.others.append(n)
        return result

    def place(self) -> str:
        """Describe the last operation: name the module that it calls, or the operation and the preceding module."""
        above = [self.last]
        for node in above:
            if node.op == "call_module":
                module = f"module {node.target} ({type(self.module.get_submodule(str(node.target))).__name__})"
                return module if node is self.last else f"{operation_name(self.last)} after {module}"
            above += [source for source in node.all_input_nodes if source not in above]
        return f"the operation {self.last.name}"


def _describe(error: Exception) -> str:
    missing = _NO_KERNEL.search(str(error))
    return f"{missing[1]} has no kernel for {missing[2]} tensors" if missing else first_line(error)

"""Trace a model, record the rank of each node's result, and report operations that cannot run."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb

import torch
from torch import fx, nn
from torch.ao.quantization import DeQuantStub, QuantStub

from storage.errors import NightquantError, QuantizationError, first_line
from tasks.quantize.graph.functional import with_plain_layers
from tasks.quantize.source import refuse_non_finite

_MODES = {"eager": "eager mode", "fx": "FX graph mode"}
# Operations that assertions in `forward` use to check shapes.
_SHAPE_CHECKS = frozenset(
    {getattr, *(vars(operator)[name] for name in ("eq", "ne", "lt", "le", "gt", "ge", "mod", "getitem"))}
)
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
        traced, plain = traced_module(model, leaves)
    except Exception as error:
        failed = _failing_module(error)
        where = f" (in {type(failed[0]).__name__}.forward, line {failed[1]})" if failed else ""
        raise QuantizationError(
            f"{type(model).__name__} cannot be traced symbolically: {first_line(error)}{where}.",
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
    model: nn.Module, leaves: Collection[str] = (), *, training: bool = False
) -> tuple[fx.GraphModule, frozenset[str]]:
    """Trace a model, but do not trace into modules in `leaves`; return the result of `with_plain_layers`."""
    graph = _Tracer(leaves).trace(model)
    _remove_idle_nodes(graph, model)
    return with_plain_layers(model, graph, training=training)


def _remove_idle_nodes(graph: fx.Graph, model: nn.Module) -> None:
    """Remove assertions, the shape operations that only assertions use, and identity modules, in place.

    Assertions and identity modules do not compute values, but keep torch from fusing adjacent nodes. For example,
    timm's norms assert the rank of their inputs.
    """
    for node in reversed(graph.nodes):
        path = str(node.target)
        if node.target is torch._assert or (node.target in _SHAPE_CHECKS and not node.users):
            graph.erase_node(node)
        elif node.op != "call_module" or path.endswith("activation_post_process"):
            continue  # an Identity named "activation_post_process" marks a FloatFunctional
        elif type(model.get_submodule(path)) is nn.Identity:
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)


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
            f"{model} cannot be {step} in {_MODES[graph]}: {_describe(error)}.",
            hint="Add the failing module to `exclude`" + (', or use graph = "fx".' if graph == "eager" else "."),
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
        hint = 'Add the module named in the error to `exclude`, or use graph = "fx", which keeps the module in float.'
        place = run.place() if run else _failing_path(model, error)
        raise QuantizationError(
            f"The converted model cannot run: {_describe(error)} in {place}.",
            hint="Add the module named in the error, or its parent module, to `exclude`." if run else hint,
        ) from error
    refuse_non_finite(output, "the example inputs after conversion")


class _Tracer(fx.Tracer):
    def __init__(self, leaves: Collection[str]) -> None:
        super().__init__()
        self._leaves = frozenset(leaves)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, QuantStub | DeQuantStub) or module_qualified_name in self._leaves:
            return True
        return super().is_leaf_module(m, module_qualified_name)


class _Interpreter(fx.Interpreter):
    """An interpreter that records the last operation that ran, and the rank of each node's first result."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.ranks: dict[fx.Node, int] = {}
        self.last = next(iter(module.graph.nodes))

    def run_node(self, n: fx.Node) -> object:
        self.last = n
        result = super().run_node(n)
        first = next(iter(result), None) if isinstance(result, tuple | list) else result
        if isinstance(first, torch.Tensor) and first.is_floating_point():
            self.ranks[n] = first.dim()
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


def _failing_path(model: nn.Module, error: Exception) -> str:
    failed = _failing_module(error)
    for path, module in model.named_modules():
        if failed and module is failed[0] and path:
            # The path of a module in a `QuantizedInside` wrapper begins with ``module.``.
            return f"module {path.removeprefix('module.')} ({type(module).__name__})"
    return type(model).__name__


def _describe(error: Exception) -> str:
    missing = _NO_KERNEL.search(str(error))
    return f"{missing[1]} has no kernel for {missing[2]} tensors" if missing else first_line(error)


def _failing_module(error: Exception) -> tuple[nn.Module, int] | None:
    """Return the innermost module whose ``forward`` raised an error, and the line that raised it.

    Return None if the error was not raised in any module.
    """
    innermost = None
    for frame, line in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and frame.f_code.co_name == "forward":
            innermost = (owner, line)
    return innermost

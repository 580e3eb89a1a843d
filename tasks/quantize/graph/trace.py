"""A model's graph, with what each node returned for an example input: what fusing and planning look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from traceback import walk_tb

import torch
from torch import fx, nn
from torch.ao.quantization import DeQuantStub, QuantStub

from storage.errors import QuantizationError, first_line
from tasks.quantize.graph.functional import with_plain_layers


@dataclass(frozen=True)
class Traced:
    """A symbolically traced model.

    ``ranks`` maps each node that returned floating-point tensors to the number of dimensions of the first of them;
    ``calls`` counts how often each module is called. ``plain`` are paths of layers that forward calls as functions.
    """

    graph: fx.Graph
    modules: Mapping[str, nn.Module]
    ranks: Mapping[fx.Node, int]
    calls: Mapping[str, int]
    plain: frozenset[str] = frozenset()

    def module_of(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls, None where it calls none."""
        return self.modules[str(node.target)] if node.op == "call_module" else None


def trace(model: nn.Module, example_inputs: Mapping[str, torch.Tensor], leaves: Collection[str] = ()) -> Traced:
    """Trace a model in evaluation mode without changing it, not looking into the modules `leaves`, and run the graph.

    Raises
    ------
    QuantizationError
        The model cannot be traced, for instance because its control flow depends on values; says where it failed. Or
        its graph cannot be run, for instance because a parameter that forward may do without is no None in it.
    """
    try:
        traced, plain = traced_module(model, leaves)
    except Exception as error:
        failed = failing_module(error)
        where = f" (in {type(failed[0]).__name__}.forward, line {failed[1]})" if failed else ""
        raise QuantizationError(
            f"{type(model).__name__} cannot be traced symbolically: {first_line(error)}{where}.",
            hint="Make its control flow independent of tensor values, or give it QuantStub, DeQuantStub and a "
            "fuse_model(is_qat) method as torchvision's quantizable models have.",
        ) from error
    recorder = _Recorder(traced)
    with torch.no_grad():
        try:
            recorder.run(*example_inputs.values())
        except Exception as error:
            raise QuantizationError(
                f"The traced graph of {type(model).__name__} cannot be run on its own: {first_line(error)}.",
                hint="Let the factory wrap it in a module whose forward takes the data's inputs and no others.",
            ) from error
    calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    # Only those that the graph calls: it holds empty modules in the place of those whose children it calls.
    modules = dict(model.named_modules()) | {name: traced.get_submodule(name) for name in calls}
    return Traced(traced.graph, modules, recorder.ranks, calls, plain)


def traced_module(
    model: nn.Module, leaves: Collection[str] = (), *, training: bool = False
) -> tuple[fx.GraphModule, frozenset[str]]:
    """Trace a model, not looking into the modules `leaves`; return what `with_plain_layers` makes of its graph."""
    return with_plain_layers(model, _Tracer(leaves).trace(model), training=training)


def is_leaf(module: nn.Module) -> bool:
    """Whether tracing does not look into a module, because it is one of torch's."""
    return type(module).__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, nn.Sequential)


def operation_name(node: fx.Node) -> str:
    """Name of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def failing_module(error: Exception) -> tuple[nn.Module, int] | None:
    """The innermost module whose ``forward`` raised an error, and the line; None where none did."""
    found = None
    for frame, line in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and frame.f_code.co_name == "forward":
            found = (owner, line)
    return found


class _Tracer(fx.Tracer):
    def __init__(self, leaves: Collection[str]) -> None:
        super().__init__()
        self._leaves = frozenset(leaves)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, QuantStub | DeQuantStub) or module_qualified_name in self._leaves:
            return True
        return super().is_leaf_module(m, module_qualified_name)


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.ranks: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> object:
        result = super().run_node(n)
        first = next(iter(result), None) if isinstance(result, tuple | list) else result
        if isinstance(first, torch.Tensor) and first.is_floating_point():
            self.ranks[n] = first.dim()
        return result

"""A model's graph, with what each node gave for an example input: what fusing and choosing a flow look at."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.ao.quantization import DeQuantStub, QuantStub

from storage.errors import QuantizationError


@dataclass(frozen=True)
class Traced:
    """A symbolically traced model.

    ``ranks`` maps each node that gave floating-point tensors to the number of dimensions of the first of them;
    ``calls`` counts how often each module is called.
    """

    graph: fx.Graph
    modules: Mapping[str, nn.Module]
    ranks: Mapping[fx.Node, int]
    calls: Mapping[str, int]


def trace(model: nn.Module, example_inputs: Mapping[str, torch.Tensor], leaves: Collection[str] = ()) -> Traced:
    """Trace a model in evaluation mode without changing it.

    Parameters
    ----------
    example_inputs
        Inputs to run the graph once with, in the order of the arguments.
    leaves
        Modules not to look into.

    Raises
    ------
    QuantizationError
        The model cannot be traced, for instance because its control flow depends on values; says where it gave up.
    """
    try:
        graph = _Tracer(leaves).trace(model)
    except Exception as error:
        raise QuantizationError(
            f"{type(model).__name__} cannot be traced symbolically: {_first_line(error)}{_where(error)}.",
            hint="Make its control flow independent of tensor values, or give it QuantStub, DeQuantStub and a "
            "fuse_model(is_qat) method as torchvision's quantizable models have.",
        ) from error
    recorder = _Recorder(fx.GraphModule(model, graph))
    with torch.no_grad():
        recorder.run(*example_inputs.values())
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    return Traced(graph, dict(model.named_modules()), recorder.ranks, calls)


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

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        first = next(iter(result), None) if isinstance(result, tuple | list) else result
        if isinstance(first, torch.Tensor) and first.is_floating_point():
            self.ranks[n] = first.dim()
        return result


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _where(error: Exception) -> str:
    traceback = error.__traceback__
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        # The deepest frame of the model's own code, not of torch's tracer.
        if "torch/fx" not in code.co_filename.replace("\\", "/") and code.co_name == "forward":
            owner = traceback.tb_frame.f_locals.get("self")
            found = f" (in {type(owner).__name__}.forward, line {traceback.tb_lineno})" if owner is not None else ""
        traceback = traceback.tb_next
    return found

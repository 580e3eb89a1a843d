"""A model's graph, with what each node returned for an example input; and what cannot be run, refused by name."""

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
# What a forward asks of a tensor's shape for an assertion.
_QUESTIONS = frozenset(
    {getattr, *(vars(operator)[name] for name in ("eq", "ne", "lt", "le", "gt", "ge", "mod", "getitem"))}
)
_NO_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend")


@dataclass(frozen=True)
class Traced:
    """A symbolically traced model.

    ``ranks`` is the number of dimensions of the first floating-point tensor that a node returned, ``calls`` how often
    each module is called, ``plain`` the paths of layers that forward calls as functions.
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
        failed = _failing_module(error)
        where = f" (in {type(failed[0]).__name__}.forward, line {failed[1]})" if failed else ""
        raise QuantizationError(
            f"{type(model).__name__} cannot be traced symbolically: {first_line(error)}{where}.",
            hint="Make its control flow independent of tensor values, or give it QuantStub, DeQuantStub and a "
            "fuse_model(is_qat) method as torchvision's quantizable models have.",
        ) from error
    recorder = _Interpreter(traced)
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
    graph = _Tracer(leaves).trace(model)
    _remove_idle_nodes(graph, model)
    return with_plain_layers(model, graph, training=training)


def _remove_idle_nodes(graph: fx.Graph, model: nn.Module) -> None:
    """Remove assertions, questions that they alone asked, and identities, in place.

    They compute nothing, and keep torch from fusing what stands on either side: timm's norms assert their input's rank.
    """
    for node in reversed(graph.nodes):
        path = str(node.target)
        if node.target is torch._assert or (node.target in _QUESTIONS and not node.users):
            graph.erase_node(node)
        elif node.op != "call_module" or path.endswith("activation_post_process"):
            continue  # a FloatFunctional is known by its identity
        elif type(model.get_submodule(path)) is nn.Identity:
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)


def is_leaf(module: nn.Module) -> bool:
    """Whether tracing does not look into a module, because it is one of torch's."""
    return type(module).__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(module, nn.Sequential)


def operation_name(node: fx.Node) -> str:
    """Name of the function or method that a node calls."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


@contextmanager
def refusing(step: str, model: str, graph: str) -> Iterator[None]:
    """Turn what torch raises in the block into a refusal to do a step: "prepared", "calibrated" or "converted".

    Raises
    ------
    QuantizationError
        Names the step, the model's type and the graph mode, with the first line of torch's message.
    """
    try:
        yield
    except NightquantError:
        raise
    except Exception as error:
        raise QuantizationError(
            f"{model} cannot be {step} in {_MODES[graph]}: {_what(error)}.",
            hint="Name the module that this is about in exclude"
            + (', or use graph = "fx".' if graph == "eager" else "."),
        ) from error


def try_out(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> None:
    """Call a converted model once on its example inputs.

    Raises
    ------
    QuantizationError
        An operation has no quantized kernel (named, with the module that called it), or the output is not finite.
    """
    # Called directly, a graph module prints a traceback.
    run = _Interpreter(model) if isinstance(model, fx.GraphModule) else None
    try:
        with torch.no_grad():
            output = (run.run if run else model)(*example_inputs.values())
    except Exception as error:
        hint = 'Name that module in exclude, or use graph = "fx", which keeps such operations float.'
        raise QuantizationError(
            f"The converted model cannot run: {_what(error)} in {run.place() if run else _failing_path(model, error)}.",
            hint="Name that module, or the one that holds it, in exclude." if run else hint,
        ) from error
    refuse_non_finite(output, "its output after conversion")


class _Tracer(fx.Tracer):
    def __init__(self, leaves: Collection[str]) -> None:
        super().__init__()
        self._leaves = frozenset(leaves)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, QuantStub | DeQuantStub) or module_qualified_name in self._leaves:
            return True
        return super().is_leaf_module(m, module_qualified_name)


class _Interpreter(fx.Interpreter):
    """Runs a graph; says where it was when it failed, and the rank of what each node returned first."""

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
        """Return the operation that ran last, and the module that it is or that it follows."""
        above = [self.last]
        for node in above:
            if node.op == "call_module":
                module = f"module {node.target} ({type(self.module.get_submodule(str(node.target))).__name__})"
                return module if node is self.last else f"{operation_name(self.last)} after {module}"
            above += [other for other in node.all_input_nodes if other not in above]
        return f"the operation {self.last.name}"


def _failing_path(model: nn.Module, error: Exception) -> str:
    failed = _failing_module(error)
    for path, module in model.named_modules():
        if failed and module is failed[0] and path:
            # The borders hold the model itself as `module`.
            return f"module {path.removeprefix('module.')} ({type(module).__name__})"
    return type(model).__name__


def _what(error: Exception) -> str:
    missing = _NO_KERNEL.search(str(error))
    return f"{missing[1]} has no kernel for {missing[2]} tensors" if missing else first_line(error)


def _failing_module(error: Exception) -> tuple[nn.Module, int] | None:
    """The innermost module whose ``forward`` raised an error, and the line; None where none did."""
    found = None
    for frame, line in walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and frame.f_code.co_name == "forward":
            found = (owner, line)
    return found

"""Replace function calls in `forward`, such as ``functional.conv2d``, with plain modules that own the parameters.

Model libraries have many subclasses of `nn.Conv2d` whose `forward` pads the input and then calls ``functional.conv2d``.
PyTorch cannot fuse such function calls or load their packed weights. They are therefore replaced with plain modules, at
the paths of the modules that own the parameters, unless the weight belongs to the root module, is computed, or is used
more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import cast

from torch import Tensor, fx, nn
from torch.fx.node import Argument
from torch.nn import functional

Args = dict[str, Argument]

_LINEAR: Args = {"input": None, "weight": None, "bias": None}
_CONVOLUTION: Args = {**_LINEAR, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_NORM: Args = {"input": None, "running_mean": None, "running_var": None, "weight": None, "bias": None}
_CONVOLUTIONS: dict[object, tuple[Callable[..., nn.Module], int]] = {
    functional.conv1d: (nn.Conv1d, 1),
    functional.conv2d: (nn.Conv2d, 2),
    functional.conv3d: (nn.Conv3d, 3),
}
# The arguments of each function in order, with their defaults.
_ARGUMENTS: dict[object, Args] = {
    functional.linear: _LINEAR,
    functional.batch_norm: {**_NORM, "training": False, "momentum": 0.1, "eps": 1e-5},
    **dict.fromkeys(_CONVOLUTIONS, _CONVOLUTION),
}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_READ = "_read_by_forward"


def with_plain_layers(model: nn.Module, graph: fx.Graph, *, training: bool = False) -> fx.GraphModule:
    """Replace function calls in a model's graph, in place, with plain layers, which share the model's tensors."""
    plain: dict[str, nn.Module] = {}
    moved: dict[str, nn.Module] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _ARGUMENTS:
            continue
        arguments = _arguments_of(node)
        tensors = {name: value for name, value in arguments.items() if isinstance(value, fx.Node) and name != "input"}
        owner = _sole_owner(frozenset(tensors.values()), model, graph)
        layer = _plain_layer(node.target, arguments, tensors, model.get_submodule(owner)) if owner else None
        if layer is not None:
            plain[owner] = layer.train(training)
            moved |= _move_children(owner, model, graph)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.call_module(owner, (arguments["input"],)))
            for unused in (node, *tensors.values()):
                graph.erase_node(unused)
        elif node.target is not functional.batch_norm:
            node.args, node.kwargs = tuple(arguments.values()), {}
    named = plain | moved | dict(_separate_reads(graph, model))
    targets = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    attributes = {name: named[name] if name in named else attrgetter(name)(model) for name in targets}
    return fx.GraphModule(attributes, graph)


def parameters_read(model: fx.GraphModule) -> frozenset[str]:
    """Return the names of the float tensors that a graph module reads."""
    names = (str(node.target) for node in model.graph.nodes if node.op == "get_attr")
    return frozenset(name for name in names if not name.endswith(_READ))


def _arguments_of(node: fx.Node) -> Args:
    """Return a function call's arguments by name; repeat a convolution's single numbers for each axis."""
    defaults = _ARGUMENTS[node.target]
    arguments = defaults | dict(zip(defaults, node.args, strict=False)) | dict(node.kwargs)
    if node.target in _CONVOLUTIONS:
        _, dimensions = _CONVOLUTIONS[node.target]
        for name in ("stride", "padding", "dilation"):
            value = arguments[name]
            if isinstance(value, list | tuple) and len(value) == 1:
                (value,) = value
            if isinstance(value, int):
                arguments[name] = (value,) * dimensions
    return arguments


def _sole_owner(tensors: frozenset[fx.Node], model: nn.Module, graph: fx.Graph) -> str:
    """Return the path of the module that owns `tensors` and has no other use, or "" if no such module exists."""
    owners = {str(tensor.target).rpartition(".")[0] for tensor in tensors}
    if len(owners) != 1 or any(tensor.op != "get_attr" or len(tensor.users) != 1 for tensor in tensors):
        return ""
    (owner,) = owners
    for node in graph.nodes:
        if node.op not in ("call_module", "get_attr") or node in tensors:
            continue
        target = str(node.target)
        # Look up only modules inside `owner`, because `_move_children` may have moved modules inside other owners.
        if target == owner or (
            target.startswith(f"{owner}.") and (node.op == "get_attr" or model.get_submodule(target).state_dict())
        ):
            return ""
    return owner


def _plain_layer(target: object, arguments: Args, tensors: Mapping[str, fx.Node], owner: nn.Module) -> nn.Module | None:
    """Return a module equivalent to a function call on the owner's tensors, or None if no such module exists."""
    values = {name: getattr(owner, str(node.target).rpartition(".")[2]) for name, node in tensors.items()}
    weight, bias = values.get("weight"), values.get("bias")
    if not isinstance(weight, nn.Parameter) or not isinstance(bias, nn.Parameter | None):
        return None
    layer: nn.Module
    if target is functional.batch_norm:
        kind = next((kind for kind in _NORMS if isinstance(owner, kind)), None)
        if kind is None or arguments["training"] is not False or values.keys() != _NORM.keys() - {"input"}:
            return None
        assert isinstance(owner, kind)
        layer = cast(Callable[..., nn.Module], kind)(len(weight), arguments["eps"], owner.momentum, device="meta")
        values["num_batches_tracked"] = owner.num_batches_tracked
    elif target is functional.linear:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    else:
        geometry = {name: arguments[name] for name in ("stride", "padding", "dilation", "groups")}
        make, _ = _CONVOLUTIONS[target]
        channels = weight.shape[1] * cast(int, arguments["groups"]), weight.shape[0]
        layer = make(*channels, tuple(weight.shape[2:]), **geometry, bias=False, device="meta")
    for name, value in values.items():
        setattr(layer, name, value)
    return layer


def _move_children(owner: str, model: nn.Module, graph: fx.Graph) -> dict[str, nn.Module]:
    """Give new paths to the submodules of `owner` that the graph calls; return the submodules, keyed by new path."""
    moved = {}
    for node in graph.nodes:
        if node.op == "call_module" and str(node.target).startswith(f"{owner}."):
            module = model.get_submodule(str(node.target))
            node.target = str(node.target).replace(".", "_")
            moved[node.target] = module
    return moved


def _separate_reads(graph: fx.Graph, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Rename each tensor that `forward` reads from a module that is also called; yield the new name and the tensor."""
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    for node in graph.nodes:
        if node.op == "get_attr" and str(node.target).rpartition(".")[0] in called:
            tensor = cast(Tensor, attrgetter(str(node.target))(model))
            if all(user.target is getattr and user.args[1] in ("device", "dtype") for user in node.users):
                tensor = tensor.detach().new_empty(0)
            node.target = f"{node.name}{_READ}"
            yield node.target, tensor

"""Find chains of modules that one int8 kernel computes, by following the graph, and fuse them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import fx, nn
from torch.ao.quantization import fuse_modules, fuse_modules_qat

from tasks.quantize.graph.trace import Traced

_NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.ConvTranspose2d: nn.BatchNorm2d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
    nn.Linear: nn.BatchNorm1d,
}
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# What may be followed by a ReLU, with batch norm between (True) or directly (False).
_WITH_RELU: dict[type[nn.Module], tuple[bool, ...]] = {
    nn.Conv1d: (True, False),
    nn.Conv2d: (True, False),
    nn.Conv3d: (True, False),
    nn.Linear: (False,),
    nn.BatchNorm2d: (False,),
    nn.BatchNorm3d: (False,),
}
_RELU_FUNCTIONS = frozenset({"relu", "relu_"})


@dataclass(frozen=True)
class Chain:
    """Modules by path, in the order in which they are called; the fused module takes the first one's place."""

    modules: tuple[str, ...]

    @property
    def head(self) -> str:
        """Path of the fused module."""
        return self.modules[0]


def find_chains(traced: Traced, *, is_qat: bool, excluded: Collection[str] = ()) -> tuple[Chain, ...]:
    """Every fusable chain: Conv-BN, Conv-BN-ReLU, Conv-ReLU, Linear-BN, Linear-ReLU, BN-ReLU, transposed Conv-BN.

    A chain is only taken where each link has one consumer and each module is called once, for fusing changes what all
    callers of a module get. Transposed Conv-BN cannot be trained fused: it is left out for quantization-aware training.

    Parameters
    ----------
    excluded
        Paths that no chain may contain.
    """
    taken: set[str] = set(excluded)
    chains = []
    for node in traced.graph.nodes:
        chain = _chain_from(node, traced, is_qat, taken)
        if len(chain) > 1:
            chains.append(Chain(chain))
            taken.update(chain)
    return tuple(chains)


def functional_relu_after_chain(traced: Traced) -> str:
    """Name of the first functional ReLU that a fused kernel could have computed, or "" where there is none.

    Eager mode computes it in a pass of its own; FX graph mode fuses it.
    """
    for node in traced.graph.nodes:
        if node.op == "call_function" or node.op == "call_method":
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            source = node.all_input_nodes[0] if node.all_input_nodes else None
            before = traced.modules[str(source.target)] if source is not None and source.op == "call_module" else None
            if name in _RELU_FUNCTIONS and type(before) in {*_NORMS, *_NORMS.values()}:
                return str(node.name)
    return ""


def fuse_chains(model: nn.Module, chains: Sequence[Chain], *, is_qat: bool) -> None:
    """Fuse in place; for quantization-aware training the batch norms stay trainable inside the fused modules.

    The model must be in training mode for quantization-aware training and in evaluation mode otherwise.
    """
    if chains:
        fuse = fuse_modules_qat if is_qat else fuse_modules
        fuse(model, [list(chain.modules) for chain in chains], inplace=True)  # type: ignore[no-untyped-call]


def _chain_from(node: fx.Node, traced: Traced, is_qat: bool, taken: Collection[str]) -> tuple[str, ...]:
    head = _module(node, traced, taken)
    if head is None or type(head) not in {*_NORMS, *_WITH_RELU}:
        return ()
    found = [str(node.target)]
    norm = _next(node, traced, taken)
    normed = norm is not None and _norm_fits(head, norm, traced, is_qat)
    if normed and norm is not None:
        found.append(str(norm.target))
        node = norm
    relu = _next(node, traced, taken)
    if (
        relu is not None
        and type(traced.modules[str(relu.target)]) is nn.ReLU
        and normed in _WITH_RELU.get(type(head), ())
    ):
        found.append(str(relu.target))
    return tuple(found)


def _norm_fits(head: nn.Module, norm_node: fx.Node, traced: Traced, is_qat: bool) -> bool:
    norm = traced.modules[str(norm_node.target)]
    if type(norm) is not _NORMS.get(type(head)) or not isinstance(norm, nn.modules.batchnorm._BatchNorm):
        return False
    if not (norm.affine and norm.track_running_stats):
        return False
    if isinstance(head, nn.Linear):
        # Over sequences the norm's channels are another axis than the Linear's features.
        return traced.ranks.get(norm_node) == 2 and norm.num_features == head.out_features
    return not (is_qat and isinstance(head, _TRANSPOSED))


def _next(node: fx.Node, traced: Traced, taken: Collection[str]) -> fx.Node | None:
    if len(node.users) != 1:
        return None
    user = next(iter(node.users))
    return user if _module(user, traced, taken) is not None and user.all_input_nodes == [node] else None


def _module(node: fx.Node, traced: Traced, taken: Collection[str]) -> nn.Module | None:
    path = str(node.target)
    if node.op != "call_module" or traced.calls[path] != 1 or path in taken:
        return None
    return traced.modules[path]

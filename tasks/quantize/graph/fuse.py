"""Find chains of modules that one int8 kernel computes, by following the graph, and fuse them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from torch import fx, nn
from torch.ao.quantization import fuse_modules, fuse_modules_qat
from torch.nn.modules.batchnorm import _BatchNorm

from tasks.quantize.graph.trace import Traced, operation_name

_DIMENSIONS = (
    (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d),
    (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d),
    (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d),
)
_TRANSPOSED = tuple(transposed for _, transposed, _ in _DIMENSIONS)
_KERNELS: frozenset[tuple[type[nn.Module], ...]] = frozenset({
    (nn.Linear, nn.BatchNorm1d), (nn.Linear, nn.ReLU), (nn.BatchNorm2d, nn.ReLU), (nn.BatchNorm3d, nn.ReLU),
    *((conv, norm) for conv, _, norm in _DIMENSIONS),
    *((conv, norm, nn.ReLU) for conv, _, norm in _DIMENSIONS),
    *((conv, nn.ReLU) for conv, _, _ in _DIMENSIONS),
    *((transposed, norm) for _, transposed, norm in _DIMENSIONS),
})  # fmt: skip
_BEFORE_RELU = frozenset(kind for kernel in _KERNELS for kind in kernel) - {nn.ReLU}


# Modules by path, in the order in which they are called; the fused module takes the place of the first, the head.
Chain = tuple[str, ...]


def find_chains(traced: Traced, *, is_qat: bool) -> tuple[Chain, ...]:
    """Every fusable chain: Conv-BN, Conv-BN-ReLU, Conv-ReLU, Linear-BN, Linear-ReLU, BN-ReLU, transposed Conv-BN.

    A chain is only taken where each link has one consumer and each module is called once, for fusing changes what all
    callers of a module get. Transposed Conv-BN cannot be trained fused: it is left out for quantization-aware training.
    """
    taken: set[str] = set()
    chains = []
    for node in traced.graph.nodes:
        line = list(islice(_line_from(node, traced, taken), 3))
        while line and not _is_fusable(line, traced, is_qat):
            line.pop()
        if line:
            chains.append(tuple(str(link.target) for link in line))
            taken.update(chains[-1])
    return tuple(chains)


def has_functional_relu_to_fuse(traced: Traced) -> bool:
    """Whether a kernel could compute a functional ReLU too; eager mode gives it a pass of its own, FX fuses it."""
    return any(
        operation_name(node) in ("relu", "relu_") and type(traced.module_of(node.all_input_nodes[0])) in _BEFORE_RELU
        for node in traced.graph.nodes
        if node.op in ("call_function", "call_method") and node.all_input_nodes
    )


def fuse_chains(model: nn.Module, chains: Sequence[Chain], *, is_qat: bool) -> None:
    """Fuse in place; for quantization-aware training the batch norms stay trainable inside the fused modules.

    The model must be in training mode for quantization-aware training and in evaluation mode otherwise.
    """
    if chains:
        fuse = fuse_modules_qat if is_qat else fuse_modules
        fuse(model, list(map(list, chains)), inplace=True)  # type: ignore[no-untyped-call]


def _line_from(node: fx.Node, traced: Traced, taken: Collection[str]) -> Iterator[fx.Node]:
    """Nodes from `node` on that call free modules, each the only consumer of the one before."""
    while node.op == "call_module" and traced.calls[str(node.target)] == 1 and str(node.target) not in taken:
        yield node
        if len(node.users) != 1:
            return
        (user,) = node.users
        if user.all_input_nodes != [node]:
            return
        node = user


def _is_fusable(line: Sequence[fx.Node], traced: Traced, is_qat: bool) -> bool:
    head, *others = (traced.modules[str(node.target)] for node in line)
    if (type(head), *map(type, others)) not in _KERNELS or (is_qat and isinstance(head, _TRANSPOSED)):
        return False
    norm = others[0]
    if not isinstance(norm, _BatchNorm):
        return True
    if isinstance(head, nn.Linear) and (traced.ranks.get(line[1]) != 2 or norm.num_features != head.out_features):
        # Over sequences the norm's channels are another axis than the Linear's features.
        return False
    return norm.affine and norm.track_running_stats

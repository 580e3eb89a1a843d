"""Activations rounded to the steps of a learned range, also where torch's kernels keep a range without saying so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, FakeQuantizeBase
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

_ops = torch.ops.quantized_decomposed


class Rounded(nn.Module):
    """Rounds activations to the 256 steps of a range; shape and dtype stay."""

    def __init__(self, scale: float, zero_point: int) -> None:
        super().__init__()
        # Of a byte all steps are there, as in torch's kernels, also where training kept the highest bit free.
        self.step = scale, zero_point, 0, 255, torch.uint8

    @classmethod
    def learned(cls, simulated: FakeQuantizeBase) -> Self:
        """Round as training did in the end."""
        scale, zero_point = simulated.calculate_qparams()  # type: ignore[no-untyped-call]
        return cls(float(scale), int(zero_point))

    def forward(self, values: Tensor) -> Tensor:
        """Quantize and dequantize."""
        rounded: Tensor = _ops.dequantize_per_tensor(_ops.quantize_per_tensor(values, *self.step), *self.step)
        return rounded


def round_result(module: nn.Module, inputs: object, result: Tensor) -> Tensor:
    """A forward hook that torch.export follows, which it does not torch's own."""
    rounded: Tensor = module.activation_post_process(result)  # type: ignore[operator]
    return rounded


def round_what_passes(model: nn.Module, takers: Iterable[nn.Module], inputs: Iterable[Tensor]) -> None:
    """Round in eager mode's models after modules without a range of their own, and before the int8 products `takers`.

    There torch's kernels for pools and the like take and give bytes of one range, and a reshaped tensor keeps it;
    nothing in the model says so, and exporters must be told. A product's `before` becomes a `Rounded`. What is called
    with several ranges is left as it is.
    """
    takers, seen = set(takers), defaultdict[nn.Module, set[Rounded | None]](set)
    follow = _Follow()

    def see(module: nn.Module, value: object) -> None:
        if isinstance(value, Tensor) and (origin := follow.origins.get(value)) is not None:
            seen[module].add(None if value in follow.rounded else origin)
            follow.rounded[value] = True  # it will be

    def see_result(module: nn.Module, _: object, result: Tensor) -> Tensor | None:
        if isinstance(module, Rounded):
            follow.origins[result], follow.rounded[result] = module, True
        elif isinstance(module, DeQuantStub):
            result = result.clone()  # what follows is float
            follow.origins.pop(result, None)
            return result
        else:
            see(module, result)
        return None

    handles = [taker.register_forward_pre_hook(lambda module, given: see(module, given[0])) for taker in takers]
    handles += [module.register_forward_hook(see_result) for module in model.modules() if _is_bare(module)]
    with torch.no_grad(), follow:
        model(*inputs)
    for handle in handles:
        handle.remove()
    for module, origins in seen.items():
        origin = origins.pop()
        if origin is None or origins:
            continue
        rounded = Rounded(*origin.step[:2])
        if module in takers:
            module.before = rounded
        else:
            module.activation_post_process = rounded
            module.register_forward_hook(round_result)


def _is_bare(module: nn.Module) -> bool:
    return not module._modules and not module._parameters


class _Follow(TorchFunctionMode):
    """Remembers of every tensor where it was rounded last, and whether nothing was done to it since."""

    def __init__(self) -> None:
        super().__init__()
        # Keyed by the tensor itself, for as long as it lives: torch's dictionary says nothing of types.
        self.origins: Any = WeakIdKeyDictionary()
        self.rounded: Any = WeakIdKeyDictionary()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        given = (value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor))
        origin = next(filter(None, map(self.origins.get, given)), None)
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and origin is not None and value not in self.origins:
                self.origins[value] = origin
        return result

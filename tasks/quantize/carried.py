"""Handle modules that carry computed weights, hooks or a replaced `forward`.

Quantizing replaces modules, and reads only their weights. `settle` therefore stores parametrized weights in advance,
and converters ask `own_behavior` for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from torch import nn
from torch.nn.utils import parametrize


def settle(model: nn.Module) -> nn.Module:
    """Replace a model's parametrized weights, in place, by the values that they have now."""
    for module in list(model.modules()):
        if not parametrize.is_parametrized(module):
            continue
        assert isinstance(module.parametrizations, nn.ModuleDict)
        for name, computed in list(module.parametrizations.items()):
            assert isinstance(computed, parametrize.ParametrizationList)
            if computed.is_tensor:
                # torch writes the computed values into this tensor, which another module may use as well.
                computed.original = type(computed.original)(computed.original.detach().clone())
            parametrize.remove_parametrizations(module, name)
    return model


def own_behavior(module: nn.Module) -> str:
    """Return what a module does beyond the `forward` of its type, for example ``"has a forward hook"``, or ""."""
    if "forward" in vars(module):
        return "has a `forward` of its own"
    if module._forward_pre_hooks:
        return "has a forward pre-hook"
    return "has a forward hook" if module._forward_hooks else ""


def leave_fast_path(model: nn.Module, quantized: Iterable[str]) -> None:
    """Let the transformer encoders around the modules at the paths `quantized` call their submodules.

    In evaluation mode, an encoder of torch otherwise passes the weights of its submodules to one fused kernel, which
    needs float weights.
    """
    for above in {above for path in quantized for above in accumulate(path.split("."), "{}.{}".format)}:
        module = model.get_submodule(above)
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # 0 stands for an activation that the fused kernel lacks
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False

"""Handle modules that carry computed weights, hooks or a replaced `forward`.

Quantizing replaces modules, and reads only their weights. `settle` therefore stores computed weights in advance, which
leaves the outputs of a model in evaluation mode unchanged. Converters ask `own_behavior` for the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import nn
from torch.nn.modules import module as every_module
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm, SpectralNormLoadStateDictPreHook
from torch.nn.utils.weight_norm import WeightNorm

from storage.errors import QuantizationError


def settle(model: nn.Module) -> nn.Module:
    """Replace the computed weights of a model in evaluation mode, in place, by the values that they have now.

    Weights are computed by weight norms, spectral norms, pruning and parametrizations, and by the `max_norm` of
    embeddings.

    Raises
    ------
    QuantizationError
        The model's outputs depend on more than its modules, weights and inputs.
    """
    if every_module._global_forward_hooks or every_module._global_forward_pre_hooks:
        raise QuantizationError(
            "A forward hook for all modules is registered in this process.",
            hint="In the code of the model, register the hook on the modules that need it.",
        )
    owners = Counter(id(tensor) for module in model.modules() for tensor in module._parameters.values())
    for path, module in list(model.named_modules()):
        if module.training:
            raise QuantizationError(
                f"The module {path or type(module).__name__} stays in training mode after `eval()`.",
                hint="In evaluation mode, make the module independent of its training mode.",
            )
        _settle_weights(module)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            if owners[id(module.weight)] > 1:
                raise QuantizationError(
                    f"The embedding {path} has a max_norm and shares its weight with another module, so the outputs "
                    "of the model depend on its earlier inputs.",
                    hint="Remove max_norm, or do not share the weight.",
                )
            with torch.no_grad():
                rows = torch.arange(len(module.weight), device=module.weight.device)
                torch.embedding_renorm_(module.weight.detach(), rows, module.max_norm, module.norm_type)
            module.max_norm = None
    return model


def _settle_weights(module: nn.Module) -> None:
    for hook in list(module._forward_pre_hooks.values()):
        match hook:
            case WeightNorm():
                remove_weight_norm(module, hook.name)
            case SpectralNorm():
                remove_spectral_norm(module, hook.name)
                # torch forgets this hook, which would look for the computed weight's parts in every state dict.
                for key, before in list(module._load_state_dict_pre_hooks.items()):
                    if isinstance(getattr(before, "hook", before), SpectralNormLoadStateDictPreHook):
                        del module._load_state_dict_pre_hooks[key]
            case prune.BasePruningMethod():
                prune.remove(module, hook._tensor_name)  # type: ignore[no-untyped-call]
    if parametrize.is_parametrized(module):
        assert isinstance(module.parametrizations, nn.ModuleDict)
        for name, computed in list(module.parametrizations.items()):
            assert isinstance(computed, parametrize.ParametrizationList)
            if computed.is_tensor:
                # torch writes the computed values into this tensor, which another module may use as well.
                computed.original = type(computed.original)(computed.original.detach().clone())
            parametrize.remove_parametrizations(module, name)


def own_behavior(module: nn.Module) -> str:
    """Return what a module does beyond the `forward` of its type, or "" if it does no more.

    The phrase describes the module, for example ``"has a forward hook"``.
    """
    if "forward" in vars(module):
        return "has a `forward` of its own"
    if module._forward_pre_hooks:
        return "has a forward pre-hook"
    return "has a forward hook" if module._forward_hooks else ""


def leave_fast_path(model: nn.Module, quantized: Iterable[str]) -> None:
    """Let the transformer encoders around quantized modules call their submodules.

    In evaluation mode, an encoder of torch otherwise passes the weights of its submodules to one fused kernel, which
    needs float weights.

    Parameters
    ----------
    quantized
        Paths of the modules that are quantized.
    """
    for above in {above for path in quantized for above in accumulate(path.split("."), "{}.{}".format)}:
        module = model.get_submodule(above)
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # 0 stands for an activation that the fused kernel lacks
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False

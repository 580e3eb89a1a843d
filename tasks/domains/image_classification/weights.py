"""torchvision's published float weights by enum name."""

from __future__ import annotations

import pickle
import struct
from typing import Any

from torch import Tensor
from torchvision.models import WeightsEnum, get_weight

from storage.errors import ConfigurationError, InputError

# Heads that GoogLeNet and Inception v3 use in training only; the models built here do not have them.
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
# No network, or a file that was cut short: the restricted unpickler then meets whatever the bytes happen to say.
_BROKEN = (
    *(OSError, RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError),
    *(ArithmeticError, MemoryError, pickle.UnpicklingError, struct.error),
)


def published(name: str) -> WeightsEnum:
    """The entry of that name, ``ResNet18_Weights.IMAGENET1K_V1`` for instance.

    Raises
    ------
    ConfigurationError
        There is none, or it is for a model that is quantized already.
    """
    try:
        weights = get_weight(name)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f'torchvision has no weights "{name}".', hint="Expected a name such as ResNet18_Weights.IMAGENET1K_V1."
        ) from error
    if "unquantized" in weights.meta:
        raise ConfigurationError(
            f"{name} is quantized already.", hint=f"Take what it was made from: {weights.meta['unquantized']}."
        )
    return weights


def weights_state(name: str) -> dict[str, Tensor]:
    """Load published weights from torch.hub's folder, where they are downloaded to on first use.

    Returns
    -------
    dict
        The state dict on the CPU, without the auxiliary heads.

    Raises
    ------
    ConfigurationError
        There are no such float weights.
    InputError
        They cannot be downloaded, or the file is broken.
    """
    weights = published(name)
    try:
        # The file's name carries the first digits of its SHA-256, which torch.hub compares after a download.
        state: dict[str, Any] = weights.get_state_dict(
            progress=False, check_hash=True, weights_only=True, map_location="cpu"
        )
    except _BROKEN as error:
        raise InputError(
            f"{name} cannot be had from {weights.url}: {error}.",
            hint="Try again with a network; or put the file into the folder checkpoints/ under $TORCH_HOME/hub, or "
            'fetch it yourself and use checkpoint.kind = "uri".',
        ) from error
    return {key: tensor for key, tensor in state.items() if not key.startswith(_AUXILIARY)}

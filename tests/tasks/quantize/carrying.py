"""What modules carry besides their weights and the `forward` of their type, and what quantizing makes of it.

Each entry of `CARRIED` has small networks that carry one thing. `tests.tasks.quantize.test_carried` compares every cell
with the float network, and docs/runtime-reference.md shows the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm


class Rows(nn.Module):
    """A convolution over pictures, and Linear layers on the means of its channels."""

    def __init__(self, change: Callable[[Rows], object] = lambda net: None) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 8, 3), nn.ReLU()
        self.block = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.middle, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        change(self)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.block(self.act(self.conv(images)).mean((2, 3)))
        return self.head(torch.tanh(self.middle(rows)))


class Tokens(nn.Module):
    """An embedding of pixels, a recurrent layer, and a head."""

    def __init__(self, embed: nn.Module | None = None, rnn: nn.Module | None = None, width: int = 16) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = embed or nn.Embedding(8, 16), rnn or nn.Identity(), nn.Linear(width, 4)
        self.register_buffer("limits", torch.linspace(0, 1, 3), persistent=False)  # no arithmetic that is quantized
        self.is_recurrent, self.is_bag = rnn is not None, isinstance(embed, nn.EmbeddingBag)

    def forward(self, images: Tensor) -> Tensor:
        states = self.embed(torch.bucketize(images[:, 0, :, 0].contiguous(), self.limits))
        if self.is_recurrent:
            states = self.rnn(states)[0]
        return self.head(states if self.is_bag else states.mean(1))


class Encoder(nn.Module):
    """A transformer encoder of torch with a padding mask; its layers read the weights of their Linear layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        rows = images[:, 0]
        padding = torch.ones_like(rows[:, :, 0]).cumsum(1) > 12
        kept = (~padding).unsqueeze(-1).to(rows.dtype)
        return self.head((self.encoder(rows, src_key_padding_mask=padding) * kept).sum(1) / 12)


class Doubled(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return -2 * super().forward(rows)


class Flipped(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return -weight.flip(0)


def halved(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return output * 0.5 + 0.25


def tripled(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (args[0] * 3.0,)


def shifted_states(module: nn.Module, args: object, output: tuple[Tensor, object]) -> object:
    return output[0] * 2 + 0.5, output[1]


def replace_forward(module: nn.Module) -> None:
    module.forward = MethodType(lambda self, rows: -2 * functional.linear(rows, self.weight, self.bias), module)


def share_weight(net: Rows) -> None:
    net.block.append(nn.Linear(16, 16))
    net.block[2].weight = net.middle.weight


def hooked_lstm() -> nn.Module:
    lstm = nn.LSTM(16, 16)
    lstm.register_forward_hook(shifted_states)
    return lstm


def padded(mode: Any) -> Callable[[Rows], None]:
    return lambda net: setattr(net, "conv", nn.Conv2d(3, 8, 3, padding=2, padding_mode=mode))


Outcome = Literal["int8", "float", "refused"]
Nets = Mapping[str, Callable[[], nn.Module]]


class Carried(NamedTuple):
    """What becomes of a module that carries something; its outputs follow the float module's, or it is refused.

    ``module`` is the path of the module that carries it, in every network of ``nets``.
    """

    what: str
    module: str
    dynamic: Outcome
    per_row: Outcome
    static: Outcome
    nets: Nets


def rows(**changes: Callable[[Rows], object]) -> Nets:
    return {name: lambda change=change: Rows(change) for name, change in changes.items()}


CARRIED = (
    Carried("a forward hook, a forward pre-hook or a replaced `forward`", "middle", "float", "float", "float", rows(
        hook=lambda net: net.middle.register_forward_hook(halved),
        prehook=lambda net: net.middle.register_forward_pre_hook(tripled),
        replaced_forward=lambda net: replace_forward(net.middle),
    )),
    Carried("the same of an activation after a convolution", "conv", "float", "float", "int8", rows(
        hook_of_activation=lambda net: net.act.register_forward_hook(halved),
    )),
    Carried("the same of a convolution", "conv", "float", "float", "float", rows(
        hook_of_convolution=lambda net: net.conv.register_forward_hook(halved),
    )),
    Carried("the same of a block of modules", "block.0", "int8", "int8", "int8", rows(
        hook_of_block=lambda net: net.block.register_forward_hook(halved),
    )),
    Carried("the same of the model itself", "middle", "int8", "int8", "refused", rows(
        hook_of_model=lambda net: net.register_forward_hook(halved),
        prehook_of_model=lambda net: net.register_forward_pre_hook(tripled),
    )),
    Carried("the same of a recurrent layer", "rnn", "float", "float", "float", {
        "hook_of_lstm": lambda: Tokens(rnn=hooked_lstm()),
    }),
    Carried("a `forward` of its own class", "middle", "float", "float", "float", rows(
        subclass=lambda net: setattr(net, "middle", Doubled(16, 16)),
    )),
    Carried("parametrizations", "middle", "int8", "int8", "int8", rows(
        weight_norm=lambda net: parametrizations.weight_norm(net.middle),
        spectral_norm=lambda net: parametrizations.spectral_norm(net.middle),
        parametrization=lambda net: parametrize.register_parametrization(net.middle, "weight", Flipped()),
    )),
    Carried("an older weight norm or spectral norm", "middle", "float", "float", "float", rows(
        old_weight_norm=lambda net: weight_norm(net.middle),
        old_spectral_norm=lambda net: spectral_norm(net.middle),
    )),
    Carried("`max_norm` of an embedding", "embed", "float", "float", "float", {
        "max_norm": lambda: Tokens(nn.Embedding(8, 16, max_norm=0.5)),
    }),
    Carried("`mode` and `max_norm` of an EmbeddingBag", "embed", "float", "float", "float", {
        "mean": lambda: Tokens(nn.EmbeddingBag(8, 16, mode="mean")),
        "max": lambda: Tokens(nn.EmbeddingBag(8, 16, mode="max")),
        "limited_bag": lambda: Tokens(nn.EmbeddingBag(8, 16, mode="sum", max_norm=0.5)),
    }),
    Carried('`padding_mode="reflect"` of a convolution', "conv", "float", "float", "int8", rows(
        reflect=padded("reflect"),
    )),
    Carried("another `padding_mode` of a convolution", "conv", "float", "float", "float", rows(
        circular=padded("circular"), replicate=padded("replicate"),
    )),
    Carried("a Linear layer without bias", "middle", "int8", "int8", "int8", rows(
        no_bias=lambda net: setattr(net, "middle", nn.Linear(16, 16, bias=False)),
    )),
    Carried("an LSTM without bias", "rnn", "float", "int8", "float", {
        "lstm_without_bias": lambda: Tokens(rnn=nn.LSTM(16, 16, bias=False)),
    }),
    Carried("`batch_first`, `num_layers` and `dropout` of an LSTM", "rnn", "int8", "int8", "float", {
        "batch_first": lambda: Tokens(rnn=nn.LSTM(16, 16, batch_first=True)),
        "layers": lambda: Tokens(rnn=nn.LSTM(16, 16, num_layers=2, dropout=0.5)),
    }),
    Carried("`bidirectional` of an LSTM", "rnn", "int8", "float", "float", {
        "bidirectional": lambda: Tokens(rnn=nn.LSTM(16, 16, bidirectional=True), width=32),
    }),
    Carried("`proj_size` of an LSTM", "rnn", "float", "float", "float", {
        "proj_size": lambda: Tokens(rnn=nn.LSTM(16, 16, proj_size=8), width=8),
    }),
    Carried("a weight or a module that is used twice", "block.2", "int8", "int8", "int8", rows(
        shared_weight=share_weight,
    ) | rows(shared_module=lambda net: net.block.append(net.middle))),
    Carried("a Linear layer of a transformer encoder", "encoder.layers.0.linear1", "int8", "int8", "float", {
        "encoder": Encoder,
    }),
)  # fmt: skip


def build(net: str) -> nn.Module:
    """A network of the table by name."""
    (make,) = (case.nets[net] for case in CARRIED if net in case.nets)
    return make()


class Everything(nn.Module):
    """Carries all that an exporter should keep."""

    def __init__(self) -> None:
        super().__init__()
        names = ("hook", "prehook", "replaced_forward", "hook_of_block", "hook_of_model", "subclass")
        names += ("old_weight_norm", "parametrization", "reflect", "shared_module")
        self.nets = nn.ModuleList(map(build, names))

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([net(images) for net in self.nets], 1)

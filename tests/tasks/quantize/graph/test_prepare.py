"""What planning says eager mode can express is converted and called here, one entry at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.quantize.graph.convert import StaticConverter, convert
from tasks.quantize.graph.plan import make_plan
from tasks.quantize.graph.prepare import prepare
from tasks.quantize.graph.trace import try_out
from tasks.quantize.methods import StaticRecipe
from tasks.quantize.spec import spec_of
from tasks.quantize.state import flatten_state, load_flat_state
from tests.tasks.quantize import networks

SPEC = spec_of(StaticRecipe(name="static", method="static", graph="eager"))
IMAGES = {"images": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))}

MODULES: list[Callable[[], nn.Module]] = [
    nn.Identity, nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.Hardswish, nn.Sigmoid, nn.Tanh,
    nn.Hardsigmoid, nn.Dropout, nn.Dropout2d, lambda: nn.MaxPool2d(2), lambda: nn.AvgPool2d(2),
    lambda: nn.AdaptiveAvgPool2d(3), lambda: nn.Upsample(scale_factor=2), lambda: nn.ChannelShuffle(2),
    lambda: nn.PixelShuffle(2), lambda: nn.BatchNorm2d(8), lambda: nn.GroupNorm(2, 8), lambda: nn.InstanceNorm2d(8),
    lambda: nn.LayerNorm(6), lambda: nn.ConvTranspose2d(8, 8, 2, stride=2),
    lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(8, 4, 3), nn.Unflatten(2, (2, 17)), nn.AdaptiveAvgPool2d(2)),
    lambda: nn.Sequential(nn.Flatten(2), nn.MaxPool1d(2), nn.Unflatten(2, (2, 9)), nn.AdaptiveAvgPool2d(2)),
]  # fmt: skip


class Applied(nn.Module):
    """A convolution, then a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(3, 8, 3), function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(self.conv(images))


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.flatten(x, 1), lambda x: x.reshape(2, -1), lambda x: x.contiguous().view(2, -1),
    lambda x: x.permute(0, 2, 3, 1), lambda x: x.transpose(1, 2), lambda x: x[:, :4], lambda x: x.chunk(2, 1)[0],
    lambda x: x.split(4, 1)[1], lambda x: x.unsqueeze(1).squeeze(1), lambda x: x.select(1, 0),
    lambda x: x.narrow(1, 0, 2), lambda x: x.mean((2, 3)), lambda x: x.clone(), lambda x: x.detach(),
    lambda x: x.relu(), torch.relu, functional.relu, lambda x: functional.max_pool2d(x, 2),
    lambda x: functional.avg_pool2d(x, 2), lambda x: functional.adaptive_avg_pool2d(x, 2),
    lambda x: functional.interpolate(x, scale_factor=2.0), lambda x: functional.dropout(x, 0.5, training=False),
    lambda x: functional.channel_shuffle(x, 2), lambda x: functional.pixel_shuffle(x, 2),
]  # fmt: skip


def converted_of(model: nn.Module) -> nn.Module:
    prepared = prepare(model, make_plan(model, SPEC, IMAGES), SPEC, IMAGES)
    with torch.no_grad():
        prepared(*IMAGES.values())
    return convert(prepared)


def _make(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return networks.one_path(nn.Conv2d(3, 8, 3), kind(), nn.Flatten())


@pytest.mark.parametrize("kind", MODULES, ids=lambda kind: str(kind()).partition("(")[0])
@pytest.mark.slow
def test_a_module_that_counts_as_expressible_is_close_to_float_and_keeps_its_state(
    kind: Callable[[], nn.Module], engine: str
) -> None:
    expected = _make(kind)(*IMAGES.values())
    converted = converted_of(_make(kind))
    try_out(converted, IMAGES)
    actual = converted(*IMAGES.values())
    assert (expected - actual).abs().mean() < 0.1 * expected.abs().mean() + 0.01
    skeleton = StaticConverter().skeleton(_make(kind), SPEC, "eager", IMAGES)
    load_flat_state(skeleton, flatten_state(converted.state_dict()))
    assert torch.equal(skeleton(*IMAGES.values()), actual)


@pytest.mark.parametrize("function", FUNCTIONS, ids=range(len(FUNCTIONS)))
@pytest.mark.slow
def test_a_function_that_counts_as_expressible_is_close_to_float(
    function: Callable[[Tensor], Tensor], engine: str
) -> None:
    torch.manual_seed(0)
    model = Applied(function).eval()
    expected = model(*IMAGES.values())
    converted = converted_of(model)
    try_out(converted, IMAGES)
    assert (expected - converted(*IMAGES.values())).abs().max() < 0.05


MASKINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda x, mask: x * mask,
    "to": lambda x, mask: x * mask.to(x.dtype),
    "fill": lambda x, mask: x.masked_fill(~mask.bool(), 0.5),
    "where": lambda x, mask: torch.where(mask.bool(), x, torch.zeros_like(x)),
    "add": lambda x, mask: x + mask,
    "positions": lambda x, mask: x * (mask.cumsum(2) > 2),
}


class Masked(nn.Module):
    """A Linear layer, a mask, and a Linear layer."""

    def __init__(self, masking: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.masking, self.first, self.last = masking, nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        kept: Tensor = self.masking(self.first(rows), mask)
        return self.last(kept.sum(1) / mask.sum(1).clamp(min=1))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
@pytest.mark.parametrize("masking", MASKINGS)
def test_masks_are_not_observed(masking: str, dtype: torch.dtype, engine: str) -> None:
    torch.manual_seed(0)
    model = Masked(MASKINGS[masking]).eval()
    inputs = {"rows": torch.randn(2, 5, 6), "mask": (torch.arange(5).view(1, 5, 1) < torch.tensor([[[3]], [[5]]]))}
    inputs["mask"] = inputs["mask"].to(dtype)
    with torch.no_grad():
        expected = model(*inputs.values())
    spec = spec_of(StaticRecipe(name="static", method="static", graph="auto"))
    plan = make_plan(model, spec, inputs)
    prepared = prepare(model, plan, spec, inputs)
    with torch.no_grad():
        prepared(*inputs.values())
    converted = convert(prepared)
    try_out(converted, inputs)
    assert (converted(*inputs.values()) - expected).abs().max() < 0.1 * (expected.max() - expected.min())
    zeros = {name: torch.zeros_like(value) for name, value in inputs.items()}
    skeleton = StaticConverter().skeleton(Masked(MASKINGS[masking]).eval(), spec, plan.graph, zeros)
    load_flat_state(skeleton, flatten_state(converted.state_dict()))
    assert torch.equal(skeleton(*inputs.values()), converted(*inputs.values()))

"""Kernels that give wrong numbers are never used, whatever flow, engine or shape."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.quantize.base import Context
from tasks.quantize.graph.unsupported import reason
from tasks.quantize.methods.static import Static, StaticRecipe
from tests.tasks.quantize import networks

Contexts = Callable[..., Context]


class Upsampling(nn.Module):
    """As in a U-Net's decoder, which says how large the output is to be."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up, self.last = nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Conv2d(8, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.up(self.conv(images), output_size=[28, 28]))


class UpsamplingTwice(Upsampling):
    """Once more by the function."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 2, 2) / 4)

    def forward(self, images: Tensor) -> Tensor:
        return functional.conv_transpose2d(super().forward(images), self.weight, stride=2)


def fused_upsampling() -> nn.Module:
    return networks.one_path(
        nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 8, 2, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    )


@pytest.mark.parametrize(
    ("make", "flow"),
    [
        (Upsampling, "eager"),
        (Upsampling, "fx"),
        (fused_upsampling, "eager"),
        (fused_upsampling, "fx"),
        (UpsamplingTwice, "fx"),
    ],
)
def test_transposed_convolutions_stay_float_and_the_coverage_says_why(
    make: Callable[[], nn.Module], flow: str, images_context: Contexts, engine: str
) -> None:
    model, context = make().eval(), images_context()
    (images,) = context.example_inputs.values()
    expected = model(images)
    recipe = StaticRecipe(name="static", method="static", flow=flow, engine=engine)
    done = Static().convert(model, recipe, context)
    found = {one.type: one for one in done.coverage}
    assert found["Conv2d"].quantized
    assert not found["ConvTranspose2d"].quantized
    assert found["ConvTranspose2d"].reason == reason("ConvTranspose2d") != ""
    actual = done.model(images)
    assert 10 * torch.log10(expected.square().mean() / (expected - actual).square().mean()) > 15


def test_other_modules_are_trusted() -> None:
    assert reason("Conv2d") == ""

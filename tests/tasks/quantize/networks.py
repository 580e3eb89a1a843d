"""Tiny image classifiers, one for each thing that fusing and planning must see."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.ao.quantization import DeQuantStub, QuantStub
from torch.nn import functional
from torchvision.models import quantization


class _OnePath(nn.Module):
    """Modules called one after the other under names that say nothing."""

    def __init__(self, *stages: nn.Module) -> None:
        super().__init__()
        for index, stage in enumerate(stages):
            setattr(self, f"m{index}", stage)
        self.count = len(stages)

    def forward(self, images: Tensor) -> Tensor:
        for index in range(self.count):
            images = getattr(self, f"m{index}")(images)
        return images


def one_path(*stages: nn.Module) -> nn.Module:
    return _OnePath(*stages).eval()


def plain() -> nn.Module:
    """Conv-BN-ReLU, Conv-BN, Conv-ReLU, pooling, Linear-ReLU, Linear."""
    return one_path(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4),
    )  # fmt: skip


def without_biases() -> nn.Module:
    """A convolution and linear layers that have none, and nothing that would fold one into them."""
    return one_path(
        nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False),
    )  # fmt: skip


def perceptron() -> nn.Module:
    """Linear layers alone, and wide ones."""
    return one_path(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 4))


def one_sided() -> nn.Module:
    """Convolutions whose weights are alike, so that products of large activations exceed 16 bits."""
    convs = [nn.Conv2d(3, 32, 3, padding=1), *(nn.Conv2d(32, 32, 3, padding=1) for _ in range(2))]
    for conv in convs:
        nn.init.normal_(conv.weight, 1.0, 1e-3)
    layers = [layer for conv in convs for layer in (conv, nn.ReLU())]
    return one_path(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))


class Residual(nn.Module):
    """A functional addition, which only FX graph mode can express."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 4)

    def forward(self, images: Tensor) -> Tensor:
        first = functional.relu(self.bn1(self.conv1(images)))
        second = functional.relu(self.bn2(self.conv2(first)) + first)
        return self.fc(functional.dropout(second.mean((2, 3)), 0.5, self.training))


class EveryRow(nn.Module):
    """Linear layers on several rows of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.relu(self.first(images.flatten(1, 2)))).mean(1)


class SharedRelu(nn.Module):
    """One ReLU called twice: fusing it into the first convolution would take it from the second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.relu = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        return self.relu(self.conv2(self.relu(self.conv1(images)))).mean((2, 3))


class DataDependent(nn.Module):
    """Cannot be traced: a branch depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        if images.sum() > 0:
            images = -images
        return self.conv(images).mean((2, 3))


class OwnStubs(nn.Module):
    """Stubs around the convolution; the softmax after them is meant to stay float."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.conv, self.dequant = QuantStub(), nn.Conv2d(3, 4, 3), DeQuantStub()
        self.scale = nn.Linear(4, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = self.dequant(self.conv(self.quant(images))).mean((2, 3))
        return functional.softmax(self.scale(features) / 2, dim=1)


class PaddedConv2d(nn.Conv2d):
    """Pads one side more before it calls the function, as EfficientNet-Lite does."""

    def forward(self, images: Tensor) -> Tensor:
        padded = functional.pad(images, (0, 1, 0, 1))
        return functional.conv2d(padded, self.weight, self.bias, self.stride)


class FunctionalProducts(nn.Module):
    """Products that are functions: in a subclass, with a child's parameters, and with the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(PaddedConv2d(3, 8, 3, 2, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.child, self.signal = nn.Conv2d(8, 8, 3), nn.Conv1d(8, 8, 3)
        self.weight = nn.Parameter(torch.randn(4, 8) / 4)

    def forward(self, images: Tensor) -> Tensor:
        features = functional.conv2d(self.stem(images), self.child.weight, self.child.bias, padding="same")
        signals = functional.conv1d(features.flatten(2), weight=self.signal.weight, bias=self.signal.bias, stride=2)
        return functional.linear(signals.mean(2), self.weight)


def clamped() -> nn.Module:
    """Two convolutions whose outputs are ten times as wide as what ReLU6 keeps of them."""
    model = one_path(
        nn.Conv2d(3, 8, 3),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    with torch.no_grad():
        model.m0.weight *= 40
        model.m2.weight *= 10
    return model


class GroupNorms(nn.Module):
    """Norms that share constants once they are exported."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.GroupNorm(1, 8), nn.Conv2d(8, 8, 1)) for _ in range(12))

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        for block in self.blocks:
            features = features + block(features)
        return features.mean((2, 3))


def fused_upsampling() -> nn.Module:
    return one_path(
        nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 8, 2, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    )


def around(layer: nn.Module) -> nn.Module:
    """A classifier with the layer, from eight channels to eight channels, inside."""
    return one_path(nn.Conv2d(3, 8, 3, stride=2), layer, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def evenly_padded() -> nn.Module:
    """A convolution with an even kernel, which pads more on one side."""
    return around(nn.Conv2d(8, 8, 2, padding="same"))


def rectified() -> nn.Module:
    return around(nn.PReLU(8, init=-0.5))


def padded_by_words() -> nn.Module:
    """Convolutions whose padding is a word, one of which reflects."""
    return around(
        nn.Sequential(
            nn.Conv2d(8, 8, 3, padding="same", bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, (3, 5), padding="same", dilation=(1, 2), padding_mode="reflect"),
            nn.Conv2d(8, 8, 2, padding="valid"),
        )
    )  # fmt: skip


def with_dropout() -> nn.Module:
    model = plain()
    model.m8 = nn.Sequential(nn.Flatten(), nn.Dropout(0.2)).eval()
    return model


def quantizable_resnet18() -> nn.Module:
    return quantization.resnet18(weights=None, num_classes=4).eval()

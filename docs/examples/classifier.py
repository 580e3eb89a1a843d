"""A classifier of your own: nightquant calls ``classifier:build`` with ``model.arguments``."""

from torch import nn


def build(classes: int, width: int = 16) -> nn.Module:
    """Return the float model: any ``torch.nn.Module`` that maps images (N, 3, H, W) to scores (N, classes)."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(2 * width * 16, classes),
    )

"""Networks that train in a second."""

from torch import nn


def small(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, classes),
    )


#: `small` for three classes, as a workload's ``[model]``.
SMALL = {"kind": "factory", "factory": f"{__name__}:small", "arguments": {"classes": 3}}

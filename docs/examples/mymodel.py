"""A classifier, its data and its training."""

import torch
from torch import nn
from torch.utils.data import DataLoader


def build(width: int = 512) -> nn.Module:
    """Return the float model, from values (N, 64) to scores (N, 8)."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))


def read() -> dict[str, list[tuple[torch.Tensor, int]]]:
    """Return each split as a list of (input, target); the class is the index of the largest of 8 values."""
    values = torch.randn(6000, 64, generator=torch.Generator().manual_seed(0))
    items = list(zip(values, values[:, :8].argmax(1).tolist(), strict=True))
    return {"train": items[:4000], "test": items[4000:]}


def train(model: nn.Module, splits: dict[str, list[tuple[torch.Tensor, int]]], seed: int, epochs: int) -> None:
    """Train the model in place on the ``train`` split."""
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(epochs):
        for values, targets in DataLoader(splits["train"], batch_size=32, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(values), targets).backward()
            optimizer.step()

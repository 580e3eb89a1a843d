"""A small network for regression, and its training; ``python power.py`` writes the CSV file with the data."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILE = Path(__file__).parent / "power.csv"


def build(features: int, width: int = 64) -> nn.Module:
    """Return the float model, from features (N, F) to numbers (N, 1)."""
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def train(model: nn.Module, splits: Mapping[str, Dataset], seed: int, epochs: int, learning_rate: float) -> None:
    """Train the model in place on the ``train`` split."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(epochs):
        for features, target in DataLoader(splits["train"], batch_size=64, shuffle=True, generator=generator):
            loss = nn.functional.mse_loss(model(features)[:, 0], target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main() -> None:
    """Write the file: the power of a wind turbine by wind, temperature, pressure and age."""
    rng = np.random.default_rng(0)
    wind, temperature = rng.weibull(2, 4000) * 9, rng.normal(12, 9, 4000)
    pressure, age = rng.normal(1013, 9, 4000), rng.uniform(0, 20, 4000)
    power = np.clip((wind - 3) / 9, 0, 1) ** 2 * pressure / 1013 * (293 / (281 + temperature)) * (1 - 0.01 * age)
    columns = np.stack([wind, temperature, pressure, age, power + rng.normal(0, 0.02, 4000)], 1)
    np.savetxt(FILE, columns, "%.6f", ",", header="wind,temperature,pressure,age,power", comments="")


if __name__ == "__main__":
    main()

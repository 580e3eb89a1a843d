"""A GRU that classifies gestures; ``python gestures.py`` writes the Parquet file with the gestures."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

FILE = Path(__file__).parent / "gestures.parquet"
KINDS = ("circle", "line", "zigzag")
SPLITS = {"train": 1200, "calibration": 128, "test": 600}


class Gestures(nn.Module):
    """A network from positions (N, T, 2) and the number of valid positions (N,) to scores (N, 3)."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.gru = nn.GRU(2, hidden, batch_first=True)
        self.head = nn.Linear(hidden, len(KINDS))

    def forward(self, positions: Tensor, lengths: Tensor) -> Tensor:
        """Score each gesture by the state after its last position."""
        states, _ = self.gru(positions)
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
        return self.head(states.gather(1, last)[:, 0])


def read(path: str = str(FILE)) -> dict[str, list[tuple[dict[str, Tensor], int]]]:
    """Return each split as a list of (inputs, target); the inputs have the names of the parameters of `forward`."""
    splits: dict[str, list[tuple[dict[str, Tensor], int]]] = {name: [] for name in SPLITS}
    for row in pq.read_table(path).to_pylist():
        positions = torch.tensor([row["x"], row["y"]]).T.contiguous()
        inputs = {"positions": positions, "lengths": torch.tensor(len(positions))}
        splits[row["split"]].append((inputs, KINDS.index(row["kind"])))
    return splits


def pad(items: list[tuple[dict[str, Tensor], int]]) -> tuple[dict[str, Tensor], Tensor]:
    """Return a batch of gestures of different lengths, padded with zeros."""
    positions = nn.utils.rnn.pad_sequence([inputs["positions"] for inputs, _ in items], batch_first=True)
    lengths = torch.stack([inputs["lengths"] for inputs, _ in items])
    return {"positions": positions, "lengths": lengths}, torch.tensor([target for _, target in items])


def train(model: nn.Module, splits: dict[str, list[tuple[dict[str, Tensor], int]]], seed: int, epochs: int) -> None:
    """Train the model in place on the ``train`` split."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    items = splits["train"]
    for _ in range(epochs):
        for chosen in torch.randperm(len(items), generator=generator).split(32):
            inputs, target = pad([items[index] for index in chosen])
            loss = nn.functional.cross_entropy(model(**inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def draw(kind: str, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Draw a noisy gesture of 12 to 40 positions."""
    t = np.linspace(0, 1, rng.integers(12, 41))
    x, y = {
        "circle": (np.cos(6.28 * t), np.sin(6.28 * t)),
        "line": (t, t),
        "zigzag": (t, np.abs((6 * t) % 2 - 1)),
    }[kind]
    noise = rng.normal(0, 0.25, (2, len(t)))
    return (x + noise[0]).astype(np.float32).tolist(), (y + noise[1]).astype(np.float32).tolist()


def main() -> None:
    """Write the file."""
    rng = np.random.default_rng(0)
    rows = []
    for split, count in SPLITS.items():
        for index in range(count):
            kind = KINDS[index % len(KINDS)]
            x, y = draw(kind, rng)
            rows.append({"split": split, "kind": kind, "x": x, "y": y})
    pq.write_table(pa.Table.from_pylist(rows), FILE)


if __name__ == "__main__":
    main()

"""A trained network, and the same function with outliers between two layers, which int8 spoils."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

CODE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, weights=""):
            super().__init__()
            self.first, self.second, self.third = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 64)
            self.fourth, self.last = nn.Linear(64, 64), nn.Linear(64, 8)
            if weights:
                self.load_state_dict(torch.load(weights), assign=True)

        def forward(self, values):
            for layer in (self.first, self.second, self.third, self.fourth):
                values = torch.relu(layer(values))
            return self.last(values)

    def rows(count, seed):
        centres = torch.randn(8, 16, generator=torch.Generator().manual_seed(9))
        labels = torch.arange(count) % 8
        values = centres[labels] + 0.5 * torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
        return list(zip(values, labels.tolist()))

    def read():
        return {"calibration": rows(256, 1), "test": rows(600, 2)}
"""


def write_networks(folder: Path) -> Path:
    """Write ``arrival_net.py``, ``good.pth``, and ``planted.pth``, in which `second` gives outliers to `third`."""
    (folder / "arrival_net.py").write_text(textwrap.dedent(CODE))
    arrival_net: Any = SimpleNamespace(**runpy.run_path(str(folder / "arrival_net.py")))
    torch.manual_seed(0)
    net, rows = arrival_net.Net(), arrival_net.rows(512, 3)
    values, labels = torch.stack([value for value, _ in rows]), torch.tensor([label for _, label in rows])
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(values), labels).backward()
        optimizer.step()
    torch.save(net.state_dict(), folder / "good.pth")
    with torch.no_grad():
        before = net(values)
        net.second.weight[:48] *= 300
        net.second.bias[:48] *= 300
        net.third.weight[:, :48] /= 300
        torch.testing.assert_close(net(values), before, rtol=1e-3, atol=1e-3)
    torch.save(net.state_dict(), folder / "planted.pth")
    return folder

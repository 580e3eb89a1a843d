"""The notebook ``docs/examples/dashboard.ipynb``: its cells as one program over a store that is filled.

``python -m tests.documentation.test_dashboard STORE`` draws the documentation's picture from a real store.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from storage.results.catalog import refresh
from tests.storage.results.rows import baseline, measurement, write_night

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "examples" / "dashboard.ipynb"
PICTURE = ROOT / "docs" / "images" / "dashboard.png"


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def run_cells() -> dict[str, Any]:
    """Execute every code cell in order, as a notebook does, and give its variables."""
    mpl.use("agg")
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells()):
        exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}[{number}]", "exec"), names)
    return names


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import matplotlib.pyplot as plt

    for day in (1, 2, 3):
        night, run = dt.date(2026, 3, day), f"run-{day}"
        write_night(tmp_path, night, [baseline(run, night), measurement(run, night, speedup=1.0 + day)], run)
    refresh(tmp_path)
    monkeypatch.setenv("NIGHTQUANT_STORE", str(tmp_path))
    yield run_cells()
    plt.close("all")


@pytest.mark.slow
def test_every_candidate_is_drawn_at_its_speed_with_its_interval_and_every_night_listed(drawn: dict[str, Any]) -> None:
    ((newest, history),) = drawn["axes"]
    labels = newest.get_legend_handles_labels()[1]
    assert labels == ["dynamic/eager", "float/eager"]
    points = {container.get_label(): container[0].get_xydata().tolist() for container in newest.containers}
    assert points == {"dynamic/eager": [[2.5, 4.0]], "float/eager": [[1.0, 1.0]]}
    (series,) = history.containers
    assert series[0].get_ydata().tolist() == [2.0, 3.0, 4.0]
    ((low, high),) = [segment[:, 1].tolist() for segment in series[2][0].get_segments()][:1]
    assert (low, high) == pytest.approx((2.0 * 0.99, 2.0 * 1.01))
    assert [(str(row["night"]), row["candidates"], row["failed"]) for row in drawn["nights"]] == [
        ("2026-03-03", 2, 0),
        ("2026-03-02", 2, 0),
        ("2026-03-01", 2, 0),
    ]


if __name__ == "__main__":
    os.environ["NIGHTQUANT_STORE"] = sys.argv[1]
    run_cells()["figure"].savefig(PICTURE, dpi=60, pil_kwargs={"optimize": True})

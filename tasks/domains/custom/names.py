"""Names of metrics and axes, apart from what computes with them: validating a workload file imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

BATCH = "batch"  # what the axis of the rows is called in data.axes

# Whether higher is better.
DIRECTIONS: Mapping[str, bool] = {
    "accuracy": True,
    "top5": True,
    "f1-macro": True,
    "auroc": True,
    "loss": False,
    "mse": False,
    "mae": False,
    "perplexity": False,
    "wer": False,
}

"""Names of the metrics, apart from what computes them, so that validating a workload file imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

# Whether higher is better.
DIRECTIONS: Mapping[str, bool] = {
    "accuracy": True,
    "f1-macro": True,
    "auroc": True,
    "loss": False,
    "mse": False,
    "mae": False,
}

"""Metrics by name, and what an evaluation found; `tasks.data.scores` computes them.

This module needs no torch, because workload files are validated against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.results import Contributions


@dataclass(frozen=True)
class Metric:
    """A metric's direction, and the name of what computes it in `tasks.data.scores`.

    ``offered`` says whether a workload file may name it for a model of any kind.
    """

    score: str
    higher_is_better: bool
    offered: bool = True


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric("ACCURACY", True),
    "top5": Metric("TOP5", True),
    "f1-macro": Metric("F1_MACRO", True),
    "auroc": Metric("AUROC", True),
    "loss": Metric("LOSS", False),
    "mse": Metric("MSE", False),
    "mae": Metric("MAE", False),
    "perplexity": Metric("PERPLEXITY", False),
    "wer": Metric("WER", False),
    "top1": Metric("TOP1", True, offered=False),
    "top5-of-any": Metric("TOP5_OF_ANY", True, offered=False),
    "cosine": Metric("COSINE", True, offered=False),
    "retrieval": Metric("RETRIEVAL", True, offered=False),
}


@dataclass(frozen=True)
class Quality:
    """What an evaluation of `count` samples found: what the gate looks at, and every number that was computed, by name.

    ``samples`` are per-sample results for paired comparison: ``quality``, float32 [N], each sample's contribution (its
    mean is the value), and ``prediction``, int64 [N]; either may be missing. ``contributions`` says what the
    former are, which decides how a difference's interval is computed (``resampled``: no contributions, but the quality
    itself on R resamples, float64 [R]); ``mode`` how it was computed, where there are several ways.
    """

    metric: str
    value: float
    higher_is_better: bool
    metrics: dict[str, float]
    samples: dict[str, Tensor]
    count: int
    mode: str = "plain"
    contributions: Contributions = "independent"

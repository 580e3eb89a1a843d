"""Estimates of candidates' sizes, which a search uses to drop recipes that cannot satisfy its bound on the size."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.quantize.spec import spec_of
from tasks.search.trial import Trial

_LEAST = 0.9  # files contain more than weights, so float files of different runtimes differ by a few percent
_SHARES = {"float32": 1.0, "bfloat16": 0.5}  # size of the weights as a fraction of their size in float32


def without_too_large(trials: Sequence[Trial], baseline_bytes: int, max_bytes: float) -> list[Trial]:
    """Return all trials; open trials are marked as dropped if they do not quantize and exceed `max_bytes`.

    The size of a trial that quantizes is unknown, because it depends on the layers that the runtime supports.

    Parameters
    ----------
    baseline_bytes
        Size of the float baseline.
    """
    found = []
    for trial in trials:
        spec = spec_of(trial.recipe)
        least = 0.0 if spec.layers else _LEAST * baseline_bytes * _SHARES[spec.arithmetic]
        if trial.outcome == "open" and least > max_bytes:
            reason = f"{spec.arithmetic} weights need at least {least:,.0f} bytes, but at most {max_bytes:,.0f}"
            trial = trial.model_copy(update={"outcome": "dropped", "reason": f"{reason} are allowed"})
        found.append(trial)
    return found

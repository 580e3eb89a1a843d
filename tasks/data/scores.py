"""Kinds of scores: means over rows, and metrics that need all rows together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.errors import MeasurementError
from tasks.environment.user_code import opened
from tasks.values.results import Contributions

RESAMPLES = 1000

Constant = Callable[[Sequence[Tensor], int], float]
Rows = Callable[[Tensor, Tensor], Tensor]
Columns = NDArray[np.float64]
Weighted = Callable[[NDArray[np.int64]], float]


@dataclass
class BatchResults:
    """The tensors collected from all batches, keyed by name; ``rows`` numbers the samples if they were reordered."""

    batches: list[dict[str, Tensor]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def joined(self, name: str) -> Tensor | None:
        """Join a tensor's batches in sample order; return ``None`` if it is missing or its rows differ in shape."""
        parts = [batch[name] for batch in self.batches if name in batch]
        if len({tuple(part.shape[1:]) for part in parts}) != 1:
            return None
        return self.in_order(torch.cat(parts))

    def in_order(self, tensor: Tensor) -> Tensor:
        """Put the rows of joined batches into sample order."""
        return tensor[torch.tensor(self.rows).argsort()] if self.rows else tensor

    def complete(self, name: str) -> Tensor:
        """Join a tensor's batches, whose rows must all have the same shape."""
        joined = self.joined(name)
        assert joined is not None
        return joined


@dataclass(frozen=True)
class Scored:
    """A metric's value, with per-sample results for paired comparisons."""

    value: float
    samples: dict[str, Tensor]
    contributions: Contributions = "resampled"
    resample: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class Score(ABC):
    """A metric that takes outputs and targets batch by batch, and then computes one number."""

    name: str
    higher_is_better: bool
    constant: Constant | None = field(default=None, kw_only=True)  # computes the quality of the best constant answer
    is_percentage: bool = field(default=False, kw_only=True)  # whether each row's value is either 0 or 100

    @abstractmethod
    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return a batch's tensors for `conclude`, keyed by name; each tensor has the shape [B, …]."""

    @abstractmethod
    def conclude(self, results: BatchResults) -> Scored:
        """Compute the metric over all batches."""


@dataclass(frozen=True)
class RowScore(Score):
    """A metric that is the mean of one value per row."""

    rows: Rows
    prediction: Callable[[Tensor], Tensor] | None = None
    keeps_output: bool = True

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return each row's value and the row's prediction or output."""
        result = {"quality": self.rows(outputs, target)}
        if self.prediction is not None:
            result["prediction"] = self.prediction(outputs)
        elif self.keeps_output:
            result["output"] = outputs.float().clone()  # a runtime may reuse its output buffers
        return result

    def conclude(self, results: BatchResults) -> Scored:
        """Compute the mean over all rows."""
        quality = results.complete("quality")
        optional = {name: results.joined(name) for name in ("prediction", "output")}
        samples = {"quality": quality.float()} | {name: t for name, t in optional.items() if t is not None}
        contributions: Contributions = "right-or-wrong" if self.is_percentage else "independent"
        return Scored(quality.mean(dtype=torch.float64).item(), samples, contributions)


@dataclass(frozen=True)
class SetScore(Score):
    """A metric that needs all rows together, such as macro F1."""

    parts: Rows  # each row's numbers, float64 [B, 2]
    prepare: Callable[[Columns], Weighted]  # takes the parts of all rows, [N, 2]
    first: str = ""  # name under which the first number of each row is stored

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return each row's numbers."""
        return {"parts": self.parts(outputs, target)}

    def conclude(self, results: BatchResults) -> Scored:
        """Compute the metric for all rows."""
        parts = results.complete("parts")
        value, size = self.prepare(parts.numpy()), len(parts)

        def resample() -> Tensor:
            return resampled(lambda rows: value(np.bincount(rows, minlength=size)), size)

        samples = {self.first: parts[:, 0]} if self.first else {}
        return Scored(value(np.ones(size, dtype=np.int64)), samples, resample=cache(resample))


@dataclass(frozen=True)
class OwnScore(Score):
    """A user's metric (``module:callable``), called with all rows, or batch by batch if the batches differ in shape."""

    reference: str
    folder: str

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the outputs and targets for the final call to the metric."""
        return {"output": outputs.clone(), "target": target}

    def conclude(self, results: BatchResults) -> Scored:
        """Call the metric; if it returns one number for all rows, `Scored.resample` calls it for each resample."""
        outputs, target = results.joined("output"), results.joined("target")
        if outputs is None or target is None:
            return self._by_batch(results)
        with self._opened() as metric:
            result, samples = metric(outputs, target), {"output": outputs.float()}
        if result.dim():
            return Scored(result.mean().item(), samples | {"quality": result.float()}, "independent")

        @torch.inference_mode()
        def resample() -> Tensor:
            with self._opened() as metric:
                return resampled(lambda rows: metric(outputs[rows], target[rows]).item(), len(target))

        return Scored(result.item(), samples, resample=cache(resample))

    def _by_batch(self, results: BatchResults) -> Scored:
        with self._opened() as metric:
            parts = [metric(batch["output"], batch["target"]) for batch in results.batches]
        if any(not part.dim() for part in parts):
            raise MeasurementError(
                f'evaluate.metric "{self.reference}" returned one number for all rows, which is not supported if the '
                "rows differ in shape.",
                hint="Return a tensor with one number for each row.",
            )
        rows = results.in_order(torch.cat(parts))
        return Scored(rows.mean().item(), {"quality": rows.float()}, "independent")

    @contextmanager
    def _opened(self) -> Iterator[Rows]:
        with opened("evaluate.metric", self.reference, self.folder) as metric:
            yield lambda outputs, target: self._checked(metric(outputs, target), len(target))

    def _checked(self, result: object, rows: int) -> Tensor:
        """Return the metric's result as float64: one number for all rows, or one number for each row."""
        number = torch.as_tensor(result, dtype=torch.float64) if isinstance(result, int | float | Tensor) else None
        if number is None or tuple(number.shape) not in ((), (rows,)):
            shape = "" if number is None else f" of shape {list(number.shape)}"
            raise MeasurementError(
                f'evaluate.metric "{self.reference}" returned a {type(result).__name__}{shape} for {rows} rows.',
                hint="Return one number for all rows, or a tensor with one number for each row.",
            )
        return number


def resampled(value: Callable[[NDArray[np.int64]], float], samples: int) -> Tensor:
    """Compute a metric of row indices for `RESAMPLES` resamples, the same for all candidates; return float64."""
    rng = np.random.default_rng(0)
    return torch.tensor([value(rng.integers(samples, size=samples)) for _ in range(RESAMPLES)], dtype=torch.float64)


def require_classes(guess: Tensor, target: Tensor) -> None:
    """Raise an error unless the targets contain one class per row."""
    if target.shape != guess.shape or target.is_floating_point():
        raise MeasurementError(
            f"the metric needs one class per row (int64 targets of shape [rows]), but the data has "
            f"{describe_target(target)}.",
            hint="Correct the targets, or choose another evaluate.metric.",
        )


def describe_target(target: Tensor) -> str:
    """Describe targets for an error message."""
    return f"{str(target.dtype).removeprefix('torch.')} targets of shape {list(target.shape)}"

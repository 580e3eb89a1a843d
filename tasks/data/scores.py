"""Kinds of scores: a mean over rows, or one number for all rows together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.errors import MeasurementError
from tasks.results import Contributions
from tasks.user_code import opened

RESAMPLES = 1000

Rows = Callable[[Tensor, Tensor], Tensor]
Weighted = Callable[[NDArray[np.generic], NDArray[np.generic], NDArray[np.int64]], float]


@dataclass
class BatchResults:
    """A score's tensors of each batch, by name; ``rows`` are the numbers of the samples if they are out of order."""

    batches: list[dict[str, Tensor]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def joined(self, name: str) -> Tensor | None:
        """Join the batches in the order of the samples; None if there is no such tensor, or if shapes differ."""
        parts = [batch[name] for batch in self.batches if name in batch]
        if len({tuple(part.shape[1:]) for part in parts}) != 1:
            return None
        tensor = torch.cat(parts)
        return tensor[torch.tensor(self.rows).argsort()] if self.rows else tensor

    def complete(self, name: str) -> Tensor:
        """Join batches that are known to have equal shapes."""
        joined = self.joined(name)
        assert joined is not None
        return joined


@dataclass(frozen=True)
class Scored:
    """A metric's value, and samples for comparisons with their kind."""

    value: float
    samples: dict[str, Tensor]
    contributions: Contributions = "resampled"


@dataclass(frozen=True)
class Score(ABC):
    """A metric that takes outputs and targets batch by batch, and then computes a number."""

    name: str
    higher_is_better: bool

    @property
    def is_percentage(self) -> bool:
        """Whether the quality is between 0 and 100, so that differences are in points."""
        return False

    @abstractmethod
    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a batch, [B, …] each, that `conclude` needs."""

    @abstractmethod
    def conclude(self, results: BatchResults) -> Scored:
        """Compute the metric of all batches."""


@dataclass(frozen=True)
class RowScore(Score):
    """A mean over rows: ``rows`` returns float [B] for B rows, or 0 and ``scale`` if the metric is a share.

    Comparisons use the result of ``prediction``, or else the outputs.
    """

    rows: Rows
    contributions: Contributions = "independent"
    prediction: Callable[[Tensor], Tensor] | None = None
    keeps_output: bool = True
    scale: float = 1.0

    @property
    def is_percentage(self) -> bool:
        """Whether each row counts as 0 or 100."""
        return self.contributions == "right-or-wrong"

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return each row's number, with its prediction or output."""
        result = {"quality": self.rows(outputs, target)}
        if self.prediction is not None:
            result["prediction"] = self.prediction(outputs)
        elif self.keeps_output:
            result["output"] = outputs.float().clone()  # a runtime may reuse the memory of its outputs
        return result

    def conclude(self, results: BatchResults) -> Scored:
        """Average the rows."""
        quality = results.complete("quality")
        optional = {name: results.joined(name) for name in ("prediction", "output")}
        samples = {"quality": quality.float()} | {name: t for name, t in optional.items() if t is not None}
        # A share is the scaled mean of zeros and ones, and this mean is exact.
        mean = self.scale * (quality / self.scale).mean(dtype=torch.float64).item()
        return Scored(mean, samples, self.contributions)


@dataclass(frozen=True)
class SetScore(Score):
    """A metric of a complete set, such as macro F1; ``reduce`` reduces the outputs of B rows to [B].

    ``value`` computes the metric from the reduced outputs, the classes and the weights of rows, all [N]. The samples
    contain the reduced outputs under the name ``reduced_name``.
    """

    reduce: Callable[[Tensor], Tensor]
    value: Weighted
    reduced_name: str

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the reduced outputs and the classes."""
        reduced = self.reduce(outputs)
        require_classes(reduced, target)
        return {self.reduced_name: reduced, "target": target}

    def conclude(self, results: BatchResults) -> Scored:
        """Compute the number of all rows and of resamples."""
        reduced, target = results.complete(self.reduced_name), results.complete("target").numpy()

        def value(rows: NDArray[np.int64]) -> float:
            return self.value(reduced.numpy(), target, np.bincount(rows, minlength=len(target)))

        samples = {self.reduced_name: reduced, "quality": resampled(value, len(target))}
        return Scored(value(np.arange(len(target))), samples)


@dataclass(frozen=True)
class RatioScore(Score):
    """A metric from a ratio of sums over rows; ``parts`` returns numerators and denominators, float64 [B, 2]."""

    parts: Rows
    value: Callable[[float], float] = float

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the numerator and denominator of each row."""
        return {"parts": self.parts(outputs, target)}

    def conclude(self, results: BatchResults) -> Scored:
        """Compute the metric of all rows and of resamples."""
        parts = results.complete("parts").numpy()
        return Scored(self.ratio(parts), {"quality": resampled(lambda rows: self.ratio(parts[rows]), len(parts))})

    def ratio(self, parts: NDArray[np.float64]) -> float:
        """Compute the metric from parts [N, 2]; NaN if the denominators sum to 0."""
        numerator, denominator = parts.sum(0).tolist()
        return self.value(numerator / denominator) if denominator else float("nan")


@dataclass(frozen=True)
class OwnScore(Score):
    """The user's metric, ``module:callable``, called with all rows, or with each batch if batches differ in shape."""

    reference: str
    folder: str

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return outputs and targets, because the metric needs all of them together."""
        return {"output": outputs.clone(), "target": target}

    def conclude(self, results: BatchResults) -> Scored:
        """Call the metric; if it returns one number for all rows, call it with resamples as well."""
        with opened("evaluate.metric", self.reference, self.folder) as metric:

            def values(outputs: Tensor, target: Tensor) -> Tensor:
                return self._checked(metric(outputs, target), len(target))

            outputs, target = results.joined("output"), results.joined("target")
            if outputs is None or target is None:
                parts = [values(batch["output"], batch["target"]) for batch in results.batches]
                if any(not part.dim() for part in parts):
                    raise MeasurementError(
                        f"{self.reference} returns one number for all rows, but the batches differ in shape.",
                        hint="Let the metric return one number for each row.",
                    )
                rows = torch.cat(parts)
                return Scored(rows.mean().item(), {"quality": rows.float()}, "independent")
            result, samples = values(outputs, target), {"output": outputs.float()}
            if result.dim():
                return Scored(result.mean().item(), samples | {"quality": result.float()}, "independent")

            def value(rows: NDArray[np.int64]) -> float:
                return values(outputs[torch.from_numpy(rows)], target[torch.from_numpy(rows)]).item()

            return Scored(result.item(), samples | {"quality": resampled(value, len(outputs))})

    def _checked(self, result: object, rows: int) -> Tensor:
        """Return the metric's result for `rows` rows as float64: one number, or one number for each row."""
        number = torch.as_tensor(result, dtype=torch.float64) if isinstance(result, int | float | Tensor) else None
        if number is None or tuple(number.shape) not in ((), (rows,)):
            kind = f"a tensor of shape {list(number.shape)}" if number is not None else f"a {type(result).__name__}"
            raise MeasurementError(
                f'evaluate.metric "{self.reference}" returned {kind} for {rows} rows.',
                hint="Return one number for all rows, or a tensor with one number for each row.",
            )
        return number


def resampled(value: Callable[[NDArray[np.int64]], float], samples: int) -> Tensor:
    """Compute a metric of `RESAMPLES` resamples of the rows, float64 [R]; every candidate has the same resamples.

    `value` computes the metric from the numbers of the drawn rows, int64 [N].
    """
    rng = np.random.default_rng(0)
    return torch.tensor([value(rng.integers(samples, size=samples)) for _ in range(RESAMPLES)], dtype=torch.float64)


def require_classes(guess: Tensor, target: Tensor) -> None:
    """Raise `MeasurementError` unless the targets contain one class per row."""
    if target.shape != guess.shape or target.is_floating_point():
        raise MeasurementError(
            f"the metric needs one class per row, int64 [rows], but the data has {describe_target(target)}.",
            hint="Correct the targets, or choose another evaluate.metric.",
        )


def describe_target(target: Tensor) -> str:
    """Describe targets for a message."""
    return f"targets of shape {list(target.shape)}, {str(target.dtype).removeprefix('torch.')}"

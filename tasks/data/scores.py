"""Kinds of scores: numbers of single rows whose mean is the quality, or one number of all rows together."""

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
class Kept:
    """What a score kept of each batch, by name; ``rows`` are the samples' numbers where they are out of order."""

    batches: list[dict[str, Tensor]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def joined(self, name: str) -> Tensor | None:
        """Join the batches in the samples' order; None where nothing was kept or batches differ in shape."""
        parts = [batch[name] for batch in self.batches if name in batch]
        if len({tuple(part.shape[1:]) for part in parts}) != 1:
            return None
        whole = torch.cat(parts)
        return whole[torch.tensor(self.rows).argsort()] if self.rows else whole

    def whole(self, name: str) -> Tensor:
        """Join batches that are alike, as numbers of rows are."""
        joined = self.joined(name)
        assert joined is not None
        return joined


@dataclass(frozen=True)
class Scored:
    """A metric's value, the samples that comparisons need of it, and what these are."""

    value: float
    samples: dict[str, Tensor]
    contributions: Contributions = "resampled"


@dataclass(frozen=True)
class Score(ABC):
    """A metric: takes outputs and targets batch by batch, and concludes with a number."""

    name: str
    higher_is_better: bool

    @property
    def is_percentage(self) -> bool:
        """Whether the quality lies between 0 and 100, so that its differences are in points."""
        return False

    @abstractmethod
    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Keep what the conclusion needs of a batch, [B, …] each."""

    @abstractmethod
    def conclude(self, kept: Kept) -> Scored:
        """Compute the metric of all batches."""


@dataclass(frozen=True)
class RowScore(Score):
    """A mean over rows: ``rows`` gives float [B] for outputs and targets of B rows, each 0 or ``scale`` in a share.

    What ``prediction`` makes of the outputs is kept for comparisons, or else the outputs themselves.
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
        """Keep each row's number."""
        kept = {"quality": self.rows(outputs, target)}
        if self.prediction is not None:
            kept["prediction"] = self.prediction(outputs)
        elif self.keeps_output:
            kept["output"] = outputs.float().clone()  # a runtime may write its next outputs into the same memory
        return kept

    def conclude(self, kept: Kept) -> Scored:
        """Average the rows."""
        quality = kept.whole("quality")
        others = {name: kept.joined(name) for name in ("prediction", "output")}
        samples = {"quality": quality.float(), **{name: each for name, each in others.items() if each is not None}}
        # A share is the scaled mean of zeros and ones, which is exact.
        mean = self.scale * (quality / self.scale).mean(dtype=torch.float64).item()
        return Scored(mean, samples, self.contributions)


@dataclass(frozen=True)
class SetScore(Score):
    """A number of a whole set: ``reduce`` keeps of the outputs what ``value`` needs of them, [B] for B rows.

    ``value`` takes what was kept, the classes, and how often each row counts, all [N]; what was kept is ``called`` so
    among the samples.
    """

    reduce: Callable[[Tensor], Tensor]
    value: Weighted
    called: str

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Keep what the outputs are reduced to, and the classes."""
        reduced = self.reduce(outputs)
        need_classes(reduced, target)
        return {self.called: reduced, "target": target}

    def conclude(self, kept: Kept) -> Scored:
        """Compute the number of all rows and of resamples."""
        reduced, target = kept.whole(self.called), kept.whole("target").numpy()

        def of_rows(rows: NDArray[np.int64]) -> float:
            return self.value(reduced.numpy(), target, np.bincount(rows, minlength=len(target)))

        samples = {self.called: reduced, "quality": resampled(of_rows, len(target))}
        return Scored(of_rows(np.arange(len(target))), samples)


@dataclass(frozen=True)
class RatioScore(Score):
    """A ratio of sums over rows: ``parts`` gives float64 [B, 2], above and below the line, ``value`` what it means."""

    parts: Rows
    value: Callable[[float], float] = float

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Keep each row's parts."""
        return {"parts": self.parts(outputs, target)}

    def conclude(self, kept: Kept) -> Scored:
        """Compute the ratio of all rows and of resamples."""
        parts = kept.whole("parts").numpy()
        return Scored(self.of(parts), {"quality": resampled(lambda rows: self.of(parts[rows]), len(parts))})

    def of(self, parts: NDArray[np.float64]) -> float:
        """Compute the metric of rows from their parts [N, 2]; NaN where there is nothing below the line."""
        above, below = parts.sum(0).tolist()
        return self.value(above / below) if below else float("nan")


@dataclass(frozen=True)
class OwnScore(Score):
    """The user's metric, ``module:callable``: of all rows together, or of each batch if batches differ in shape."""

    reference: str
    folder: str

    def take(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Keep outputs and targets, which the metric looks at together."""
        return {"output": outputs.clone(), "target": target}

    def conclude(self, kept: Kept) -> Scored:
        """Ask the metric; where it gives one number for all rows, ask it of resamples as well."""
        with opened("evaluate.metric", self.reference, self.folder) as own:

            def said(outputs: Tensor, target: Tensor) -> Tensor:
                return self._checked(own(outputs, target), len(target))

            outputs, target = kept.joined("output"), kept.joined("target")
            if outputs is None or target is None:
                parts = [said(batch["output"], batch["target"]) for batch in kept.batches]
                if any(not part.dim() for part in parts):
                    raise MeasurementError(
                        f"{self.reference} looks at all rows together, and batches have outputs of different shapes.",
                        hint="Let the metric return one number for each row.",
                    )
                rows = torch.cat(parts)
                return Scored(rows.mean().item(), {"quality": rows.float()}, "independent")
            given, samples = said(outputs, target), {"output": outputs.float()}
            if given.dim():
                return Scored(given.mean().item(), samples | {"quality": given.float()}, "independent")

            def of_rows(rows: NDArray[np.int64]) -> float:
                return said(outputs[torch.from_numpy(rows)], target[torch.from_numpy(rows)]).item()

            return Scored(given.item(), samples | {"quality": resampled(of_rows, len(outputs))})

    def _checked(self, given: object, rows: int) -> Tensor:
        """What the metric says of `rows` rows: float64, a number or one for each."""
        number = torch.as_tensor(given, dtype=torch.float64) if isinstance(given, int | float | Tensor) else None
        if number is None or tuple(number.shape) not in ((), (rows,)):
            shown = f"a tensor of shape {list(number.shape)}" if number is not None else f"a {type(given).__name__}"
            raise MeasurementError(
                f'evaluate.metric "{self.reference}" returned {shown} for {rows} rows.',
                hint="It must return a number for all rows together, or a tensor with one for each.",
            )
        return number


def resampled(value: Callable[[NDArray[np.int64]], float], samples: int) -> Tensor:
    """Compute a metric of `RESAMPLES` resamples of the rows, float64 [R]; every candidate has the same resamples.

    `value` takes the rows drawn, int64 [N].
    """
    rng = np.random.default_rng(0)
    return torch.tensor([value(rng.integers(samples, size=samples)) for _ in range(RESAMPLES)], dtype=torch.float64)


def need_classes(guess: Tensor, target: Tensor) -> None:
    """Refuse targets that are not one class a row, with a `MeasurementError`."""
    if target.shape != guess.shape or target.is_floating_point():
        raise MeasurementError(
            f"the metric needs a class a row, int64 [rows], and the data has {described(target)}.",
            hint="Correct the targets, or choose another evaluate.metric.",
        )


def described(target: Tensor) -> str:
    """Describe targets for a message."""
    return f"targets of shape {list(target.shape)}, {str(target.dtype).removeprefix('torch.')}"

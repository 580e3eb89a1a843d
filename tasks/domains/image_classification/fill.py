"""Sharing samples out among the splits while they are read, whatever they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.errors import InputError
from tasks.domains.image_classification.splits import Split, stratified_order
from tasks.domains.image_classification.transforms import UnreadableError
from tasks.domains.image_classification.writer import ImageWriter, Pixels
from tasks.job import Progress, silent

_TELL_EVERY = 64
_NAMED = 5


@dataclass(frozen=True)
class Part:
    """Samples that one or several splits are cut from.

    ``quotas`` are filled in order, with what can be read and is not in the data set yet; None takes all that is left.
    ``read(i)`` gives the i-th sample, uint8 [3, H, W], or raises :class:`UnreadableError`.
    """

    names: Sequence[str]
    labels: Sequence[int]
    read: Callable[[int], Pixels]
    quotas: tuple[tuple[Split, int | None], ...]


def quotas_of_pool(
    size: int, calibration: int, *, test: float | None, valid: float | None
) -> tuple[tuple[Split, int | None], ...]:
    """How many of `size` training samples each split gets; `test` and `valid` are shares, None where they are given."""
    shares: tuple[tuple[Split, float | None], ...] = (("test", test), ("valid", valid))
    held_out: tuple[tuple[Split, int | None], ...] = tuple(
        (split, max(1, round(share * size))) for split, share in shares if share is not None
    )
    return (*held_out, ("calibration", calibration), ("train", None))


def fill(
    writer: ImageWriter, parts: Sequence[Part], *, seed: int, max_corrupt_share: float, progress: Progress = silent
) -> list[str]:
    """Read every part and add its samples to its splits; give the names of those that could not be read.

    Raises
    ------
    InputError
        More than `max_corrupt_share` of the samples cannot be read.
    """
    total = sum(len(part.names) for part in parts)
    unreadable: dict[str, str] = {}
    done = 0
    for part in parts:
        targets = list(part.quotas)
        for index in stratified_order(part.labels, seed):
            done += 1
            if done % _TELL_EVERY == 0:
                progress(done, total, "images")
            if not targets:
                continue
            try:
                pixels = part.read(int(index))
            except UnreadableError as error:
                unreadable[part.names[index]] = str(error)
                continue
            split, left = targets[0]
            added = writer.add(split, pixels, part.labels[index])
            if added and left is not None:
                targets[0] = (split, left - 1)
                if left == 1:
                    del targets[0]
    progress(total, total, "images")
    if len(unreadable) > max_corrupt_share * total:
        raise _too_many(unreadable, total, max_corrupt_share)
    return sorted(unreadable)


def _too_many(unreadable: dict[str, str], total: int, share: float) -> InputError:
    named = "; ".join(f"{name} ({reason})" for name, reason in sorted(unreadable.items())[:_NAMED])
    more = f"; and {len(unreadable) - _NAMED} more" if len(unreadable) > _NAMED else ""
    return InputError(
        f"{len(unreadable)} of {total} images cannot be read, and {share:.1%} may: {named}{more}.",
        hint="Mend or remove them, or raise data.max_corrupt_share.",
    )

"""What a bundle promises on other processors: its tolerances are what was seen when it ran as on lesser ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import Field

from storage.digest import file_digest
from storage.errors import BundleError, UnavailableError
from storage.seal import SUMS
from tasks.bundle.verify import Answers, run_checker
from tasks.job import Workspace
from tasks.proof.processor import environment_of, lesser_processors
from tasks.refs import Frozen

# A processor that nobody tried rounds at other places than those that were.
HEADROOM = 2.0
# Below it, as a share of an output's range, differences are rounding, which differs from version to version.
FLOOR = 1e-3


class Seen(Frozen):
    """How a bundle's answers came out on a processor, named by its best instruction set.

    ``differences`` are the largest absolute ones of each output, ``changed`` the share of golden rows whose first
    choice is another one. They are ``promised`` where no first choice changed and all differences lie within the
    method's own tolerance.
    """

    processor: str
    promised: bool
    differences: dict[str, float] = Field(default={})
    changed: float | None = None
    problem: str = ""


def try_processors(
    folder: Path, runtime: str, required: Sequence[str], limits: Mapping[str, float], workspace: Workspace
) -> tuple[list[Seen], str]:
    """Run a bundle as on every lesser processor that has the `required` instruction sets.

    Parameters
    ----------
    folder
        The bundle, with the sums of its files.
    limits
        The largest difference of each output that the method allows.

    Returns
    -------
    seen, why_not
        What came out, best processor first; and why none could be tried here, "" where that could be.
    """
    processors = lesser_processors(required)
    try:
        variables = {processor: environment_of(processor, workspace) for processor in processors}
    except UnavailableError as error:
        return [], error.message
    sums = file_digest(folder / SUMS)

    def run(processor: str) -> Seen:
        try:
            answers = run_checker(folder, sums, runtime, variables=variables[processor])
        except BundleError as error:
            return Seen(processor=processor, promised=False, problem=error.message.replace(f"{folder}: ", ""))
        return _seen(processor, answers, limits)

    with ThreadPoolExecutor() as pool:  # each waits for a process of its own
        return list(pool.map(run, processors)), ""


def is_bound(required: Sequence[str]) -> bool:
    """Whether files that need these instruction sets run on none of the lesser processors that this one has."""
    return bool(lesser_processors()) and not lesser_processors(required)


def tolerances(
    seen: Sequence[Seen], limits: Mapping[str, float], share: float, *, bound: bool = False
) -> dict[str, float]:
    """How far each output may be off: twice what was seen where it is promised, at most the method's own limit.

    Where nothing was seen it is that limit, but for files that are `bound` to this kind of processor.

    Parameters
    ----------
    share
        What the limits are of each output's range.
    """
    promised = [each for each in seen if each.promised]
    if not promised and not bound:
        return dict(limits)
    return {
        name: min(
            limit,
            max(
                min(FLOOR / share, 1.0) * limit,
                HEADROOM * max((each.differences[name] for each in promised), default=0.0),
            ),
        )
        for name, limit in limits.items()
    }


def _seen(processor: str, answers: Answers, limits: Mapping[str, float]) -> Seen:
    promised = not answers.changed and all(
        name in answers.differences and answers.differences[name] <= limit for name, limit in limits.items()
    )
    return Seen(
        processor=processor,
        promised=promised,
        differences={name: found for name, found in answers.differences.items() if math.isfinite(found)},
        changed=answers.changed,
        problem=answers.problem,
    )

"""Trying a workload out for ``nightquant workloads --check`` and ``init``, and what they say of it, in lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import click
from rich.text import Text

from flows.settings import load_settings, source_of
from storage.humanize import plural
from tasks.job import Progress, Workspace
from tasks.quantize.coverage import in_words
from tasks.refs import ModuleCoverage
from tasks.results import CandidatePreview, Preview
from tasks.workload import Workload

R = TypeVar("R")
_LIMIT_S = 900.0


def in_worker(stage: Callable[[Workspace, Workload], R], workload: Workload, store: str, progress: Progress) -> R:
    """Run a stage that calls the user's code in a process of its own, which has a time limit.

    Raises
    ------
    MeasurementError
        It took too long, or its process died.
    """
    from flows.execution.workers import STARTED, Workers
    from tasks.machine import available_cores

    def heard(label: str, done: float, total: float, unit: str) -> None:
        if unit != STARTED:
            progress(done, total, unit)

    settings = load_settings()
    limit_s = _LIMIT_S if source_of("stage_timeout_s") == "default" else settings.stage_timeout_s
    workers = Workers(1, available_cores(), settings.cache, listener=heard)
    try:
        value = workers.run(stage, f"{workload.name}: check", limit_s, store, workload).value
    except BaseException:
        workers.stop()
        raise
    workers.close()
    return value


def preview_lines(found: Preview) -> Iterator[Text]:
    """Describe a preview: what there is, what fits, each candidate, and each problem."""
    yield Text(f"{found.workload}: {_verdict(found)}", style="bold red" if found.problems else "bold green")
    if found.splits:
        yield _line("data", ", ".join(f"{count:,} {split}" for split, count in found.splits.items()))
    yield from (Text(f"  ! {note}", style="yellow") for note in found.data_notes)
    if found.model:
        yield _line("model", f"{found.model}, {found.parameters:,} parameters")
        yield _line("inputs", found.inputs)
        yield _line("outputs", found.outputs)
    if found.checkpoint:
        yield _line("weights", "; ".join([found.checkpoint, *found.notes]))
        yield _line("methods", _fitting(found.methods))
        yield _line("runtimes", _fitting(found.runtimes))
    for each in found.candidates:
        yield Text(f"  {'✗' if each.obstacle else '✓'} {each.candidate}: {_candidate(each)}")
        yield from map(Text, _float_modules(each.coverage))
    for problem in found.problems:
        yield Text(f"  ✗ {problem}", style="red")
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().obj is True:  # --debug
        yield from map(Text, found.tracebacks)


def _verdict(found: Preview) -> str:
    return plural(len(found.problems), "problem") if found.problems else "fits"


def _line(name: str, text: str) -> Text:
    return Text(f"  {name:9} {text}")


def _fitting(reasons: Mapping[str, str]) -> str:
    fit = ", ".join(name for name, reason in reasons.items() if not reason)
    return "; ".join([fit, *(f"not {name}: {reason.rstrip('.')}" for name, reason in reasons.items() if reason)])


def _candidate(found: CandidatePreview) -> str:
    if found.obstacle:
        return found.obstacle.partition("\n")[0]
    if found.exported_only:
        return "can be exported; compiling it takes minutes and was not tried"
    done = sum(module.quantized for module in found.coverage)
    return f"{done} of {plural(len(found.coverage), 'module')} quantized" if done else "fits"


def _float_modules(coverage: Sequence[ModuleCoverage]) -> Iterator[str]:
    """A line for each reason for which modules of a quantized model stay float; none of a float model's."""
    if not any(module.quantized for module in coverage):
        return
    yield from (f"      stays float: {line}" for line in in_words(coverage))

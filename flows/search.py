"""Search for recipes: find and store the answers that a `tasks.search.race.Race` requests; and the Prefect flow."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Cancelled, Completed

import tasks
from flows import steps
from flows.answers import Answers, Step, can_begin, fitting_steps, question_of, required
from flows.execution.context import CONFIGURED, current_execution, current_invocation, executing
from flows.execution.signals import ignoring_interruptions, interruption_behind, sigterm_as_interrupt
from flows.fan_out import wait_for
from flows.request import SearchRequest, SearchResult
from flows.settings import Settings
from flows.steps import Place
from storage.digest import digest_of
from storage.errors import NightRunningError
from storage.holder import Holder, hold
from storage.humanize import plural, ratio
from storage.journal import Answer, Journal
from storage.root import StoreRoot, set_cache_folder
from tasks.environment.machine import fingerprint, this_machine
from tasks.environment.sources import source_digest, user_digest
from tasks.search.race import Race
from tasks.search.scoreboard import Scoreboard
from tasks.search.space import space, variants, without_too_large
from tasks.search.trial import Build, Found, Request, Selection, Time, Trial
from tasks.values.job import Job
from tasks.workload.base import REFERENCE
from tasks.workload.gate import Goal
from tasks.workload.gate import Search as SearchSection
from tasks.workload.workload import Workload


@dataclass
class Search:
    """A search in progress."""

    workload: str
    goal: Goal
    finalists: int
    race: Race
    journal: Journal
    find: Callable[[Request, Sequence[Trial]], list[Found | None]]
    split: str
    fingerprint: str
    budget_s: float
    deadline: float
    at_once: int
    report: Callable[[str], None]
    _own: set[str] = field(default_factory=set)  # questions that this process has answered
    _since: float = field(default_factory=time.monotonic)  # end of the time that the journal's answers cover

    @classmethod
    def begin(cls, workload: Workload, store: str, settings: Settings, budget_s: float | None = None) -> Search:
        """Begin or continue a workload's search; the workload's ``[search]`` section sets the default budget."""
        section = workload.search or SearchSection()
        goal = section.goal(workload.gate)
        prepared = wait_for(steps.prepare.submit(Place(store), workload), "prepare")
        dataset = required(prepared, "the data could not be prepared")
        obtained = wait_for(steps.obtain.submit(Place(store), workload, dataset), "checkpoint")
        job = required(obtained, "the weights could not be obtained")
        selection = Selection.of(dataset)
        host = settings.fingerprint or fingerprint()
        journal = Journal.read(store, workload.name, digest_of(_inputs(job, selection.split, goal, host)))
        began, budget_s = time.monotonic(), budget_s or section.budget_s
        deadline = time.time() + budget_s - journal.spent_s
        answers = Answers(job, selection, goal.quality_unit, settings, store, deadline)
        types = {module.type for module in answers.baseline.coverage}
        trials, largest = space(workload, types, this_machine()), None
        if goal.min_size_ratio:
            largest = answers.baseline.size_bytes / goal.min_size_ratio
            trials = without_too_large(trials, answers.baseline.size_bytes, largest)
        board = Scoreboard(
            objective=goal.objective,
            bound=goal.max_quality_drop,
            samples=selection.samples,
            trials=trials,
            min_speedup=goal.min_speedup,
            max_size_bytes=largest,
        )
        race = Race(board, partial(variants, workload), section.keep_float)
        return cls(
            workload=workload.name,
            goal=goal,
            finalists=section.finalists,
            race=race,
            journal=journal,
            find=answers.find,
            split=selection.split,
            fingerprint=host,
            budget_s=budget_s,
            deadline=deadline,
            at_once=race.batch if settings.task_runner == "dask" else settings.workers,
            report=current_execution().reporter.noted,
            _since=began,
        )

    def run(self) -> SearchResult:
        """Measure until no undecided trial can win, or until every possible step would exceed the budget."""
        self.journal.begin(self.budget_s, self.fingerprint)
        running: dict[Future[list[Found | None]], tuple[Step, float]] = {}  # steps, and when the steps began
        errors: list[Exception] = []
        threads = ThreadPoolExecutor(self.at_once)
        try:
            while (step := None if errors else self._next([step for step, _ in running.values()])) or running:
                if step:
                    trials = self.race.board.numbered(step.numbers)
                    # Prefect finds the flow run in the context, and two threads cannot enter the same context.
                    future = threads.submit(copy_context().run, self.find, step.request, trials)
                    running[future] = step, time.monotonic()
                    continue
                done = wait(running, return_when=FIRST_COMPLETED).done
                # Begin with the answers, because an interruption in a step ends this loop.
                for future in sorted(done, key=lambda future: future.exception() is not None):
                    step, began = running.pop(future)
                    try:
                        self._save(step, future.result(), time.monotonic() - began)
                    except Exception as error:  # noqa: BLE001 - raised after the other steps
                        errors.append(error)
        finally:
            # If the search is interrupted, the caller stops the workers, which ends the steps.
            threads.shutdown(wait=False, cancel_futures=True)
        if errors:
            raise errors[0]
        undecided = plural(count, "trial") if (count := len(self.race.undecided())) else ""
        result = self.result(f"the budget ended with {undecided} undecided" if undecided else "no other trial can win")
        self.journal.end(result.ended)
        return result

    def result(self, ended: str, stopped_by: int = 0) -> SearchResult:
        """Return the outcome so far."""
        undecided = len(self.race.undecided())
        # If the search is cut short, also count the time since the last answer.
        rest_s = time.monotonic() - self._since if undecided else 0.0
        return SearchResult(
            workload=self.workload,
            goal=self.goal,
            split=self.split,
            fingerprint=self.fingerprint,
            trials=tuple(self.race.board.results(self.finalists)),
            finalists=tuple(self.race.board.finalists(self.finalists)),
            budget_s=self.budget_s,
            spent_s=self.journal.spent_s + rest_s,
            undecided=undecided,
            ended=ended,
            stopped_by=stopped_by,
        )

    def _next(self, running: Collection[Step]) -> Step | None:
        """Return a step that can begin now and fits into the budget, or None if no step can begin."""
        while requests := self.race.requests():
            asked = [(request, number) for request in requests for number in request.numbers]
            # Pass the answers in the journal to the race first, because the race may then need fewer new answers.
            trials = self.race.board.trials
            found = [(number, self.journal.find(question_of(request, trials[number - 1]))) for request, number in asked]
            if any(answer for _, answer in found):
                for number, answer in found:
                    if answer:
                        self._pass_on(number, answer)
                continue
            left_s = self.deadline - time.time()
            if left_s <= 0:
                return None
            answers = self.journal.answers()
            possible: list[Step] = []
            for request in requests:
                possible += fitting_steps(request, self.race, answers, running, left_s)
            if possible:
                step = min(possible, key=_order)
                return step if can_begin(step, running, self.at_once) else None
            if running:
                return None
            self.race.set_aside(number for _, number in asked)
        return None

    def _save(self, step: Step, found: Sequence[Found | None], duration_s: float) -> None:
        """Save the answers of a finished step, and pass them to the race."""
        request, numbers = step.request, step.numbers
        if isinstance(request, Time):  # a timing that was stopped may only have waited for another benchmark
            duration_s -= max((answer.waited_s for answer in found if answer), default=duration_s)
        now = time.monotonic()
        cost_s, self._since = (now - self._since) / len(numbers), now
        answers = [
            Answer(
                question=question_of(request, self.race.board.trials[number - 1]),
                value=None if answer is None else answer.model_dump(mode="json", exclude_defaults=True),
                cost_s=cost_s,
                duration_s=duration_s,
                together=len(numbers),
            )
            for number, answer in zip(numbers, found, strict=True)
        ]
        self.journal.add(*answers)
        self._own |= {answer.question for answer in answers}
        before = self.race.board.best()
        for number, answer in zip(numbers, answers, strict=True):
            self._pass_on(number, answer)
        best = self.race.board.best()
        if best is not None and (before is None or best.name != before.name):
            faster = f"{ratio(best.speed.value)} as fast as the baseline, " if best.speed else ""
            spent = f"{self.journal.spent_s:.0f} s of {self.budget_s:.0f} s spent"
            self.report(f"{self.workload}: best recipe so far: {best.name}, {faster}{spent}")

    def _pass_on(self, number: int, answer: Answer) -> None:
        if answer.value is not None:
            found, is_own = Found.model_validate(answer.value), answer.question in self._own
            self.race.record(number, found, cost_s=answer.cost_s if is_own else 0.0, known=not is_own)


def _order(step: Step) -> tuple[bool, float, bool]:
    """Return a key that sorts evaluations first, then other steps by duration, with timing before builds."""
    is_build = isinstance(step.request, Build)
    return is_build or isinstance(step.request, Time), step.expected_s, is_build


def _inputs(job: Job[Workload], split: str, goal: Goal, fingerprint: str) -> dict[str, object]:
    """Return the inputs that determine a search's answers, except the trials' recipes."""
    workload = job.workload
    evaluate = workload.evaluate.model_dump(mode="json")
    metrics = [value for value in evaluate.values() if isinstance(value, str) and re.match(REFERENCE, value)]
    package = Path(tasks.__path__[0])
    return {
        "dataset": job.dataset.digest,
        "checkpoint": job.checkpoint.digest,
        "model": workload.model.model_dump(mode="json"),
        "evaluate": evaluate,
        "metrics": user_digest(getattr(workload.evaluate, "folder", ""), *metrics),
        "benchmark": workload.benchmark.model_dump(mode="json"),
        "baseline": workload.recipe_named(workload.baseline_name.recipe).content(),
        "split": split,
        "unit": goal.quality_unit,
        "fingerprint": fingerprint,
        "libraries": this_machine().libraries,
        "code": {str(path.relative_to(package)): source_digest(path) for path in sorted(package.rglob("*.py"))},
    }


@flow(
    name="search-recipes",
    description="Search for the best recipes of one workload.",
    task_runner=CONFIGURED,
    persist_result=False,
    validate_parameters=True,
)
def search_recipes(request: SearchRequest) -> State[SearchResult] | State[NightRunningError]:
    """Search for one workload's best recipes within a time budget, without publishing a bundle."""
    settings, reporter = current_invocation()
    settings = settings.model_copy(update=request.model_dump(include={"store"}, exclude_none=True))
    set_cache_folder(settings.cache)
    workload, store = request.load_workload(), StoreRoot.of(settings.store).url
    search = None
    try:
        with (
            hold(store, Holder(f"search {workload.name}", str(this_flow_run.id or ""))),
            executing(settings, reporter) as execution,
        ):
            try:
                with sigterm_as_interrupt():
                    search = Search.begin(workload, store, settings, request.budget_s)
                    result = search.run()
            except BaseException as error:
                stop = interruption_behind(error)
                if stop is None or search is None:
                    raise
                with ignoring_interruptions():
                    execution.workers.stop()
                    number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
                    result = search.result(f"{number.name} stopped it", number)
                return Cancelled(message=result.describe(), data=result)
            return Completed(message=result.describe(), data=result)
    except NightRunningError as error:
        return Cancelled(message=str(error), data=error)

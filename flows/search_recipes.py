"""The Prefect flow ``search-recipes``, which searches for one workload's best recipes without publishing a bundle."""

from __future__ import annotations

import signal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Cancelled, Completed

from flows.execution.context import current_invocation, executing
from flows.execution.signals import ignoring_interruptions, interruption_behind, sigterm_as_interrupt
from flows.execution.task_runners import CONFIGURED
from flows.reporter import Reporter
from flows.request import SearchRequest, SearchResult
from flows.search import Search
from flows.settings import Settings
from storage.errors import NightRunningError
from storage.holder import Holder, hold
from storage.root import StoreRoot, set_cache_folder
from tasks.workload import Workload


@flow(
    name="search-recipes",
    description="Search for the best recipes of one workload.",
    task_runner=CONFIGURED,
    persist_result=False,
    validate_parameters=True,
)
def search_recipes(request: SearchRequest) -> State[SearchResult] | State[NightRunningError]:
    """Search for one workload's best recipes within a time budget."""
    invocation = current_invocation()
    settings = invocation.settings.model_copy(update=request.model_dump(include={"store"}, exclude_none=True))
    set_cache_folder(settings.cache)
    workload, store = request.load_workload(), StoreRoot.of(settings.store).url
    try:
        with hold(store, Holder(f"search {workload.name}", str(this_flow_run.id or ""))):
            return _search(workload, store, settings, invocation.reporter, request.budget_s)
    except NightRunningError as error:
        return Cancelled(message=str(error), data=error)


def _search(
    workload: Workload, store: str, settings: Settings, reporter: Reporter, budget_s: float | None
) -> State[SearchResult]:
    with executing(settings, reporter) as execution:
        search = None
        try:
            with sigterm_as_interrupt():
                search = Search.begin(workload, store, settings, budget_s)
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

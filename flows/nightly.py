"""The Prefect flows: ``nightly-quantization`` carries out a run, and ``compact-results`` merges small result files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.runtime import deployment as this_deployment
from prefect.runtime import flow_run as this_flow_run
from prefect.schedules import Cron
from prefect.states import Cancelled, Completed, Failed
from prefect.types.entrypoint import EntrypointType

from flows import steps
from flows.execution.context import CONFIGURED, Execution, current_invocation, executing
from flows.execution.signals import attempt, ignoring_interruptions, interruption_behind, reason, sigterm_as_interrupt
from flows.execution.worker import serve_in_order
from flows.fan_out import benchmark_all, choose_baseline, compare, publish, study_layers, submit
from flows.findings import end_dead_runs, end_unreported_runs, link_report, look_back, raise_alarm, reported
from flows.reporter import Reporter
from flows.request import NightlyRequest, NightSummary
from flows.run import Run, night_of_this_run
from flows.search import Search
from flows.settings import load_settings
from flows.steps import Place
from storage.errors import ConfigurationError, NightRunningError, StoreError
from storage.holder import Holder, hold, record_dead_run
from storage.results.catalog import refresh
from storage.results.compact import compact
from storage.results.history import last_baselines
from storage.results.regressions import Regression
from storage.root import StoreRoot, set_cache_folder
from tasks.run.record import GOOD, REGRESSED
from tasks.search.space import adopt
from tasks.values.results import WorkloadResult
from tasks.workload import Workload


def _run_name() -> str:
    """Return the flow run's name in Prefect's UI, for example ``night 2026-11-21: lstm-demo, resnet18``."""
    request: NightlyRequest = this_flow_run.parameters["request"]
    night = request.night or night_of_this_run()
    return f"night {night}: {', '.join(Path(name).stem for name in request.workloads) or 'every workload'}"


@flow(
    name="nightly-quantization",
    flow_run_name=_run_name,
    description="Quantize, evaluate, benchmark, record and publish every workload.",
    task_runner=CONFIGURED,
    persist_result=False,
    validate_parameters=True,
)
def nightly_quantization(
    request: NightlyRequest = NightlyRequest(),  # noqa: B008 - it is frozen
) -> State[NightSummary] | State[NightRunningError] | State[None]:
    """Quantize, evaluate and benchmark the models of the requested workloads, and publish the best candidates."""
    settings, reporter = current_invocation()
    settings = settings.model_copy(update=request.model_dump(include={"store", "profile"}, exclude_none=True))
    # Set the cache folder before locking the store, because the lock file of an object store is in the cache folder.
    set_cache_folder(settings.cache)
    settings.signer()  # reject a wrong key now, not after hours of work
    run = Run.begin(request, settings, str(this_flow_run.id or ""), this_flow_run.run_count)
    try:
        with hold(run.store, Holder(run.info.run_id, run.flow_run_id)) as held:
            for dead in held.dead:
                run.attempt(f"recording the end of run {dead.run_id}", partial(record_dead_run, run.store, dead))
            end_dead_runs(held, run.flow_run_id)
            run.attempt(
                "looking for runs that could not report their end",
                partial(end_unreported_runs, run.store, run.flow_run_id),
            )
            return _carry_out(run, reporter)
    except NightRunningError as error:
        return Cancelled(message=str(error), data=error)
    except (KeyboardInterrupt, TerminationSignal):
        if this_deployment.id is None:
            raise  # the command reports the signal
        return Cancelled(message=run.stopped)  # Prefect would report a crash


def serve(request: NightlyRequest, cron: str, timezone: str) -> None:
    """Serve the deployment ``nightly-quantization/served`` from this process until the process is stopped."""
    try:
        schedule = Cron(cron, timezone=timezone, slug="served")
    except ValueError as error:
        raise ConfigurationError(
            f"The schedule {cron!r} in the time zone {timezone!r} is invalid: {error}.",
            hint="Correct --cron or --timezone.",
        ) from error
    deployment = RunnerDeployment.from_flow(
        nightly_quantization,
        name="served",
        schedule=schedule,
        parameters={"request": request.model_dump(mode="json", exclude_none=True)},
        tags=["nightquant", "nightly"],
        # A path would be relative to the working folder.
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    # Unlike ``flow.serve``, which pickles the flow's function without the types of its parameters, import the flow in
    # each run's process.
    serve_in_order(deployment)


def _carry_out(run: Run, reporter: Reporter) -> State[NightSummary]:
    with executing(run.settings, reporter) as execution:
        try:
            with sigterm_as_interrupt():
                _measure(run)
                # Send the alert before publishing, because the remaining steps may fail or be killed.
                findings, alarm = _alert(run)
                for result in run.results:
                    run.attempt(f"publishing {result.workload.name}", partial(_publish, run, result))
                _finish(run)
        except BaseException as error:
            stop = interruption_behind(error) or error
            _save_finished(run, stop, execution)
            if stop is error:
                raise
            raise stop from None
    summary = NightSummary(
        run_id=run.info.run_id,
        night=run.info.night,
        store=run.settings.store,
        message="; ".join(filter(None, (run.outcome(), alarm))),
        remarks=tuple(run.remarks),
        exit_code=run.exit_code(regressed=any(finding.is_bad for finding in findings)),
        bundles=tuple(f"{workload}/{version}" for workload, version in run.bundles.items()),
        report=run.report,
        findings=tuple(finding.describe() for finding in findings),
    )
    message = "; ".join((summary.message, *summary.remarks))
    if summary.exit_code == GOOD:
        return Completed(message=message, data=summary)
    # The alert has already been sent. If the state's name were ``Failed``, an automation would send a second alert.
    name = "Regressed" if summary.exit_code == REGRESSED else None
    return Failed(name=name, message=message, data=summary)


def _measure(run: Run) -> None:
    floats = {each.name: [*map(str, each.floats())] for each in run.workloads if each.chooses_baseline}
    lookup = partial(last_baselines, StoreRoot.of(run.store), floats)
    run.freeze(run.attempt("looking up the baselines", lookup) or {})
    # Search before all other stages, because the stages of other workloads would disturb the search's timings.
    run.workloads = [_with_finalists(run, workload) for workload in run.workloads]
    place = Place(run.store, fingerprint=run.settings.fingerprint)
    submitted = [submit(workload, place) for workload in run.workloads]
    # Start timing after all other stages, because training during a benchmark would disturb the measurements.
    gathered = [gather() for gather in submitted]
    gathered = [_with_baseline(run, result, place) for result in gathered]
    gathered = [compare(result, place, run.simultaneous.get(result.workload.name, {})) for result in gathered]
    if run.info.profile == "full":
        gathered = [study_layers(result, place) for result in gathered]
    for result in benchmark_all(gathered, run.settings, place):
        # Record each workload at once, because a run that is killed later must not lose its timings.
        steps.record(run.info, run.add(result, datetime.now(UTC)), run.store, result.workload.name)


def _with_baseline(run: Run, result: WorkloadResult, place: Place) -> WorkloadResult:
    """Find the baseline of a workload that has none yet."""
    if not result.workload.chooses_baseline:
        return result
    result, baseline = choose_baseline(result, run.settings, place)
    run.choose(result.workload.name, baseline)
    return result


def _with_finalists(run: Run, workload: Workload) -> Workload:
    """Search for recipes if the workload has a ``[search]`` section, and add the finalists to the workload."""
    if workload.search is None or run.request.recipes:
        return workload
    found = run.attempt(
        f"searching for recipes of {workload.name}", lambda: Search.begin(workload, run.store, run.settings).run()
    )
    if found is None:
        return workload
    run.tables[workload.name] = {"trials": found.rows(run.info)}
    run.simultaneous[workload.name] = found.comparisons()
    run.remarks.append(f"{workload.name}: {found.describe()}")
    return adopt(workload, found.finalists).with_twins()


def _alert(run: Run) -> tuple[tuple[Regression, ...], str]:
    """Compare results with earlier nights and send the alert; return the findings and the alert's message."""
    request, info = run.request, run.info
    names = {workload.name for workload in run.workloads}
    everything = not (request.workloads or request.recipes)
    findings = look_back(run.store, info.night, names, is_everything=everything)
    news = reported(findings, request.recipes)
    alert, failed = run.attempt("sending the alert", lambda: raise_alarm(news, run.settings)) or ("", {})
    for action, why in (findings.troubles | failed).items():
        run.fail(action, why)
    rows = findings.comparison.rows(info.run_id, info.night)
    run.attempt("recording the findings", lambda: steps.record(info, {"findings": rows}, run.store))
    return news.comparison.findings, alert


def _publish(run: Run, result: WorkloadResult) -> None:
    """Publish a workload's winner, and immediately record the workload's decisions."""
    name = result.workload.name
    published = publish(result, run.tables[name]["measurements"], run.info, run.settings, run.store)
    steps.record(run.info, run.publish(name, published, datetime.now(UTC)), run.store, name)


def _finish(run: Run) -> None:
    """Build the catalog and the report, then record the run, so that the run's status reflects every failure."""
    run.attempt("building the catalog", lambda: refresh(run.store))
    report = partial(steps.report, run.info, run.store, run.row(datetime.now(UTC)))
    run.report = run.attempt("writing the report", report) or ""
    if run.report:
        link_report(run.report)
    steps.record(run.info, {"runs": [run.row(datetime.now(UTC))]}, run.store)
    run.attempt("building the catalog", lambda: refresh(run.store))


def _save_finished(run: Run, stop: BaseException, execution: Execution) -> None:
    status, message = run.ended_by(stop)
    with ignoring_interruptions():
        if status == "cancelled":  # the error of a failed run is shown at the end
            run.stopped = message
            execution.reporter.noted(message)
        # Stop the stages first, because running stages would use up the time that is left for recording.
        execution.workers.stop()
        last = {"runs": [run.row(datetime.now(UTC), status, message)]}
        record = partial(steps.record.fn, run.info, store=run.store)
        # Rows that are already recorded stay unchanged. If one step fails, the other steps still run.
        recordings: list[Callable[[], object]] = [
            *(partial(record, tables, part=name) for name, tables in run.tables.items()),
            partial(record, last),
            partial(refresh, run.store),
        ]
        outcomes = [attempt("keeping what is finished", recording) for recording in recordings]
        # If a store error stopped the run, that error already explains why recording failed.
        if not isinstance(stop, StoreError):
            for error in dict.fromkeys(reason(outcome) for outcome in outcomes if isinstance(outcome, Exception)):
                execution.reporter.noted(f"Some of the run's results could not be recorded: {error}")


@flow(name="compact-results", description="Merge the small result files of finished months into one file per table.")
def compact_results(store: str | None = None) -> str:
    """Compact the results of `store` (default: the store in the settings) and return a one-line summary."""
    settings = load_settings(store=store)
    set_cache_folder(settings.cache)
    summary = str(compact(settings.store))
    get_run_logger().info("compacted: %s", summary)
    return summary

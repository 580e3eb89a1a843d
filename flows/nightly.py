"""The flow ``nightly-quantization``: every workload through the chain, whatever becomes of the others."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Completed, Failed

from flows import steps
from flows.alarm import describe, gone_workloads, missed_nights, raise_alarm
from flows.execution.context import Execution, current_invocation, executing
from flows.execution.signals import heard_everywhere, interruption_behind, undisturbed
from flows.execution.task_runners import CONFIGURED, AnyTaskRunner
from flows.fan_out import benchmark_all, gather, study_layers, submit
from flows.leaderboard import publish_leaderboard
from flows.night import GOOD, REGRESSED, WORK_FAILED, Night, NightSummary
from flows.request import NightlyRequest
from flows.settings import Settings
from storage.errors import NightquantError, StoreError
from storage.results.catalog import refresh
from storage.results.regressions import Regression, find_regressions
from storage.root import StoreRoot
from tasks.bundle.manifest import Provenance
from tasks.bundle.package import BundleRef
from tasks.gate import GateDecision, judge, promotion_rows
from tasks.record import Failure, Row, WorkloadResult, layer_rows


def _run_name() -> str:
    """``night 2026-11-21: lstm-demo, resnet18``, as Prefect's UI lists it."""
    request: NightlyRequest = this_flow_run.parameters["request"]
    night = request.night or datetime.now().astimezone().date()
    return f"night {night}: {', '.join(Path(name).stem for name in request.workloads) or 'every workload'}"


@flow(
    name="nightly-quantization",
    flow_run_name=_run_name,
    description="Quantize, evaluate, benchmark, record and hand over every workload.",
    task_runner=CONFIGURED,
    persist_result=False,
    validate_parameters=True,
)
def nightly_quantization(request: NightlyRequest = NightlyRequest()) -> State[Any]:  # noqa: B008 - it is frozen
    """Run one night.

    One workload's failure never stops the others: it becomes rows with its error, and the run ends Failed after
    everything else has finished. Where the run is cancelled, the rows of the workloads that were through are kept.
    """
    began = time.perf_counter()
    invocation = current_invocation()
    asked = request.model_dump(include={"store", "profile"}, exclude_none=True)
    settings = invocation.settings.model_copy(update=asked)
    store = StoreRoot.of(settings.store).url  # absolute: another process may have another working folder
    night = Night.begin(request, settings, str(this_flow_run.id or ""), this_flow_run.run_count)
    with executing(settings, invocation.reporter) as execution:
        try:
            with heard_everywhere():
                _measure(night, settings, store)
                _record(night, store)
                _hand_over(night, store)
                findings = _finish(night, settings, request)
        except BaseException as error:
            stop = interruption_behind(error) or error
            _keep_what_is_finished(night, store, stop, execution)
            if stop is error:
                raise
            raise stop from None
    summary = _summary(night, settings, findings, execution, time.perf_counter() - began)
    state = Completed if summary.exit_code == GOOD else Failed
    return state(message=summary.message, data=summary)


def _measure(night: Night, settings: Settings, store: str) -> None:
    submitted = [submit(workload, store) for workload in night.workloads]
    # No candidate is timed before every workload is through: training beside a benchmark would spoil it.
    gathered = [gather(one) for one in submitted]
    if night.info.profile == "full":
        explained = [study_layers(result, store) for result in gathered]
        gathered = [result for result, _ in explained]
        night.remarks += [remark for _, remarks in explained for remark in remarks]
    for result in benchmark_all(gathered, settings, store, _task_runner()):
        night.add(result)


def _task_runner() -> AnyTaskRunner:
    run = FlowRunContext.get()
    if run is None:
        raise RuntimeError("this is no flow run")
    return run.task_runner


def _record(night: Night, store: str) -> None:
    steps.record(night.info, _measured(night), store)
    night.recorded = True


def _measured(night: Night) -> dict[str, list[Row]]:
    layers = [row for result in night.results for row in layer_rows(night.info, result)]
    return {"measurements": night.rows, "layers": layers}


def _hand_over(night: Night, store: str) -> None:
    """Judge every workload and package its winner; a bundle that cannot be made is a failed candidate."""
    for result in night.results:
        workload, rows = result.workload, night.rows_of(result.workload.name)
        decisions = judge(workload, rows)
        night.decisions[workload.name] = decisions
        for decision in decisions:
            if decision.decision == "promote":
                bundle = _package(night, result, decision, store)
                if isinstance(bundle, Failure):
                    night.packaging_failed(workload.name, decision, bundle)
                elif bundle.outcome == "withdrawn":
                    night.withdrawn.append(workload.name)
                else:
                    night.bundles[workload.name] = bundle.version
        night.promotions += promotion_rows(
            night.decisions[workload.name],
            workload=workload.name,
            run_id=night.info.run_id,
            night=night.info.night,
            decided_at=datetime.now(UTC),
            bundle_version=night.bundles.get(workload.name),
        )
    steps.record(night.info, {"promotions": night.promotions}, store)
    night.handed_over = True


def _package(night: Night, result: WorkloadResult, decision: GateDecision, store: str) -> BundleRef | Failure:
    promoted = next(
        each for each in result.candidates if (each.recipe, each.runtime) == (decision.recipe, decision.runtime)
    )
    if result.job is None or promoted.built is None or promoted.evaluation is None:
        raise RuntimeError(f"{result.workload.name} {decision.candidate} was promoted but never built")
    made = Provenance(
        job=result.job,
        candidate=promoted.built,
        evaluation=promoted.evaluation,
        decision=decision,
        measurements=night.rows_of(result.workload.name),
        night=night.info.night,
        run_id=night.info.run_id,
    )
    try:
        return steps.package(made, store)
    except (NightquantError, OSError) as error:
        return Failure(stage="package", error=str(error))


def _finish(night: Night, settings: Settings, request: NightlyRequest) -> list[Regression]:
    status = "failed" if night.problems() else "completed"
    steps.record(night.info, {"runs": [night.run_row(status, night.message())]}, settings.store)
    refresh(settings.store)
    findings = [one for one in find_regressions(settings.store, night.info.night) if _concerns(one, night, request)]
    # Who asks for some workloads or recipes only does not want to hear that the others are missing.
    missing = missed_nights(settings.store, night.info.night)
    if not (request.workloads or request.recipes):
        missing = gone_workloads(settings.store, night.info.night) + missing
    publish_leaderboard(night.rows, night.outcomes(), steps.report(night.info, settings.store))
    night.alarm = raise_alarm(findings, settings, absences=missing, run_id=night.info.run_id)
    return findings


def _concerns(finding: Regression, night: Night, request: NightlyRequest) -> bool:
    """Whether a finding is about this run: an earlier one of the same night has told of its own."""
    asked = finding.workload in {workload.name for workload in night.workloads}
    return asked and (finding.kind != "vanished" or not request.recipes)


def _keep_what_is_finished(night: Night, store: str, stop: BaseException, execution: Execution) -> None:
    missing = [one.name for one in night.workloads if one.name not in {done.workload.name for done in night.results}]
    failed = isinstance(stop, Exception)
    reason = (str(stop) if failed else "") or type(stop).__name__
    message = f"stopped ({reason}); not measured: {', '.join(missing) or 'nothing'}"
    tables = {} if night.recorded else _measured(night)
    # What a bundle was made of is told even where the run was stopped before its end.
    tables |= {} if night.handed_over else {"promotions": night.promotions}
    with undisturbed():
        if not failed:  # an error is shown when the run ends
            execution.reporter.noted(message)
        # The stages go first: what they still do would take the time that is left for the rows.
        execution.workers.stop()
        try:
            runs = [night.run_row("failed" if failed else "cancelled", message)]
            steps.record.fn(night.info, tables | {"runs": runs}, store)
            refresh(store)
        except StoreError as error:
            # Where the store is what stopped the run, its own error says so already, and the run ends with it.
            if not isinstance(stop, StoreError):
                execution.reporter.noted(f"nothing could be recorded: {error}")


def _summary(
    night: Night, settings: Settings, findings: list[Regression], execution: Execution, wall_s: float
) -> NightSummary:
    bad = [one for one in findings if one.is_bad]
    good, failed = night.candidates()
    benchmarks = [one for result in night.results for one in result.benchmarks]
    return NightSummary(
        run_id=night.info.run_id,
        night=night.info.night,
        store=settings.store,
        message=f"{night.message()}; {night.alarm}",
        exit_code=WORK_FAILED if night.problems() else REGRESSED if bad else GOOD,
        candidates_ok=len(good),
        candidates_failed=len(failed),
        bundles=tuple(f"{workload}/{version}" for workload, version in night.bundles.items()),
        findings=tuple(describe(one) for one in findings),
        wall_s=wall_s,
        busy_s=execution.busy_s(),
        benchmark_wall_s=sum(one.wall_s for one in benchmarks),
        benchmark_timed_s=sum(one.timed_s for one in benchmarks),
    )

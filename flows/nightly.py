"""The flow ``nightly-quantization``: every workload through the chain, whatever becomes of the others."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Cancelled, Completed, Failed

from flows import steps
from flows.alarm import gone_workloads, missed_nights, raise_alarm
from flows.console import publish_leaderboard
from flows.execution.context import Execution, current_invocation, executing
from flows.execution.dead_runs import end_dead_runs
from flows.execution.signals import heard_everywhere, interruption_behind, undisturbed
from flows.execution.task_runners import CONFIGURED
from flows.fan_out import benchmark_all, gather, study_layers, submit
from flows.night import GOOD, REGRESSED, WORK_FAILED, Night, NightSummary
from flows.reporter import Reporter
from flows.request import NightlyRequest
from storage.errors import NightRunningError, StoreError
from storage.holder import Holder, hold
from storage.results.catalog import refresh
from storage.results.regressions import NightComparison, Regression, compare_night
from storage.root import set_cache_folder
from tasks.bundle.manifest import Provenance
from tasks.gate import GateDecision, judge
from tasks.results import WorkloadResult


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
def nightly_quantization(
    request: NightlyRequest = NightlyRequest(),  # noqa: B008 - it is frozen
) -> State[NightSummary] | State[NightRunningError]:
    """Run one night.

    One workload's failure never stops the others: it becomes rows with its error, and the run ends Failed after
    everything else has finished. If the run is cancelled, the rows of the workloads that were through are kept. If
    another night holds the store, the run is cancelled at once.
    """
    began = time.perf_counter()
    invocation = current_invocation()
    asked = request.model_dump(include={"store", "profile"}, exclude_none=True)
    settings = invocation.settings.model_copy(update=asked)
    # The lock of an object store lies there.
    set_cache_folder(settings.cache)
    settings.signer()  # a wrong key is told now, not after hours of work
    night = Night.begin(request, settings, str(this_flow_run.id or ""), this_flow_run.run_count)
    try:
        with hold(night.store, Holder(night.info.run_id, night.flow_run_id)) as held:
            end_dead_runs(held, night.flow_run_id)
            return _carry_out(night, invocation.reporter, began)
    except NightRunningError as error:
        return Cancelled(message=str(error), data=error)


def _carry_out(night: Night, reporter: Reporter, began: float) -> State[NightSummary]:
    with executing(night.settings, reporter) as execution:
        try:
            with heard_everywhere():
                _measure(night)
                steps.record(night.info, night.measured(), night.store)
                _hand_over(night)
                findings, alarm = _finish(night)
        except BaseException as error:
            stop = interruption_behind(error) or error
            _keep_what_is_finished(night, stop, execution)
            if stop is error:
                raise
            raise stop from None
    regressed = any(finding.is_bad for finding in findings)
    summary = NightSummary(
        run_id=night.info.run_id,
        night=night.info.night,
        store=night.settings.store,
        message=f"{night.message()}; {alarm}",
        exit_code=WORK_FAILED if night.has_failures() else REGRESSED if regressed else GOOD,
        bundles=tuple(f"{workload}/{version}" for workload, version in night.bundles.items()),
        trouble=tuple(night.trouble()),
        findings=tuple(finding.describe() for finding in findings),
        wall_s=time.perf_counter() - began,
        busy_s=execution.busy_s(),
        benchmark_wall_s=sum(each.wall_s for each in night.benchmarks()),
        benchmark_timed_s=sum(each.timed_s for each in night.benchmarks()),
    )
    if summary.exit_code == GOOD:
        return Completed(message=summary.message, data=summary)
    # A name of its own: the alarm has told of it, and an automation on the name Failed would tell it again.
    name = "Regressed" if summary.exit_code == REGRESSED else None
    return Failed(name=name, message=summary.message, data=summary)


def _measure(night: Night) -> None:
    submitted = [submit(workload, night.store) for workload in night.workloads]
    # No candidate is timed before every workload is through: training beside a benchmark would spoil it.
    gathered = [gather(futures) for futures in submitted]
    if night.info.profile == "full":
        studied = [study_layers(result, night.store) for result in gathered]
        gathered = [result for result, _ in studied]
        night.remarks += [remark for _, remarks in studied for remark in remarks]
    for result in benchmark_all(gathered, night.settings, night.store):
        night.add(result)


def _hand_over(night: Night) -> None:
    """Judge every workload and package its winner."""
    for result in night.results:
        name = result.workload.name
        judgement = judge(result.workload, night.rows_of(name), result.incumbent)
        decided = [
            _package(night, result, each) if each.decision == "promote" else each for each in judgement.decisions
        ]
        if judgement.incumbent is not None and judgement.incumbent.stays:
            night.bundles.setdefault(name, judgement.incumbent.version)
            if all(each.decision != "promote" for each in judgement.decisions):
                _renew(night, name)
        night.decide(name, judgement.model_copy(update={"decisions": tuple(decided)}))
    steps.record(night.info, {"promotions": night.promotions}, night.store)


def _package(night: Night, result: WorkloadResult, decision: GateDecision) -> GateDecision:
    """Package the promoted candidate; if that fails, so has the candidate."""
    workload = result.workload.name
    promoted = next(each for each in result.candidates if f"{each.recipe}/{each.runtime}" == decision.candidate)
    if result.job is None or promoted.built is None or promoted.evaluation is None:
        raise RuntimeError(f"{workload} {decision.candidate} was promoted but never built")
    made = Provenance(
        job=result.job,
        candidate=promoted.built,
        evaluation=promoted.evaluation,
        decision=decision,
        measurements=night.rows_of(workload),
        night=night.info.night,
        run_id=night.info.run_id,
    )
    try:
        bundle = steps.package(made, night.store)
    except Exception as error:
        if interruption_behind(error) is not None:
            raise
        night.problems[workload] = str(error)
        reason = f"promoted by the gate, but its bundle could not be made: {error}"
        return decision.model_copy(update={"decision": "reject", "reason": reason})
    if bundle.outcome == "withdrawn":
        # Somebody rolled back from this very content: a night does not overrule that.
        night.remarks.append(f"{workload}'s winner was rolled back before and stays withdrawn")
    else:
        night.bundles[workload] = bundle.version
    return decision


def _renew(night: Night, workload: str) -> None:
    """Sign anew what stays current; where that is refused, a person has to look."""
    if night.settings.signer() is None:
        return
    try:
        steps.renew(workload, night.store)
    except Exception as error:
        if interruption_behind(error) is not None:
            raise
        night.problems[workload] = str(error)


def _finish(night: Night) -> tuple[tuple[Regression, ...], str]:
    """Record the run and compare it with the nights before; return what was found, and what the alarm did."""
    status = "failed" if night.has_failures() else "completed"
    steps.record(night.info, {"runs": [night.run_row(status, night.message())]}, night.store)
    refresh(night.store)
    compared = compare_night(night.store, night.info.night).of({workload.name for workload in night.workloads})
    if compared.findings:
        steps.record(night.info, {"findings": compared.rows(night.info.run_id, night.info.night)}, night.store)
        refresh(night.store)
    missing = missed_nights(night.store, night.info.night)
    # A run of some workloads or recipes only is not expected to have the others.
    if not (night.request.workloads or night.request.recipes):
        missing = gone_workloads(night.store, night.info.night) + missing
    publish_leaderboard(night.rows, night.promotions, steps.report(night.info, night.store))
    told = _told(compared, night)
    return told.findings, raise_alarm(told, night.settings, absences=missing, run_id=night.info.run_id)


def _told(compared: NightComparison, night: Night) -> NightComparison:
    """What this run tells of: where it was asked for some recipes, the others have not vanished."""
    findings = (each for each in compared.findings if each.kind != "vanished" or not night.request.recipes)
    return replace(compared, findings=tuple(findings))


def _keep_what_is_finished(night: Night, stop: BaseException, execution: Execution) -> None:
    through = {result.workload.name for result in night.results}
    missing = [workload.name for workload in night.workloads if workload.name not in through]
    failed = isinstance(stop, Exception)
    reason = (str(stop) if failed else "") or type(stop).__name__
    message = f"stopped ({reason}); not measured: {', '.join(missing) or 'nothing'}"
    with undisturbed():
        if not failed:  # an error is shown when the run ends
            execution.reporter.noted(message)
        # The stages go first: what they still do would take the time that is left for the rows.
        execution.workers.stop()
        runs = [night.run_row("failed" if failed else "cancelled", message)]
        try:
            # What was recorded before is left as it is; the promotions say what the bundles were made of.
            steps.record.fn(night.info, night.measured() | {"promotions": night.promotions, "runs": runs}, night.store)
            refresh(night.store)
        except StoreError as error:
            # If the store is what stopped the run, its own error says so already, and the run ends with it.
            if not isinstance(stop, StoreError):
                execution.reporter.noted(f"nothing could be recorded: {error}")

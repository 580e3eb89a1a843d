"""The tables' columns: the source for schemas, validation, the catalog and ``docs/results.md``.

You can add a column at the end of a table; the new column is NULL in older files. Do not remove a column or change its
type.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import pyarrow as pa

from storage import results

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Column:
    """A column; ``unit`` is ``""`` if its values have no unit, and ``choices`` is ``()`` if any value is valid."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    nullable: bool = True
    choices: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """The column's meaning, followed by the possible values."""
        return f"{self.meaning}; values: {', '.join(self.choices)}" if self.choices else self.meaning


@dataclass(frozen=True)
class Table:
    """A table; the columns in ``key`` identify a row, and files are sorted by the columns in ``order``."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    order: tuple[str, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(column.name for column in self.columns)

    @cached_property
    def schema(self) -> pa.Schema:
        """The pyarrow schema, with each column's unit and meaning in its metadata."""
        fields = [
            pa.field(column.name, column.type, column.nullable, {"unit": column.unit, "meaning": column.description})
            for column in self.columns
        ]
        return pa.schema(fields, metadata={"nightquant.table": self.name, "nightquant.schema": str(SCHEMA_VERSION)})


TEXT, FLAG, INT, REAL = pa.string(), pa.bool_(), pa.int64(), pa.float64()
DATE, TIME = pa.date32(), pa.timestamp("us", tz="UTC")


def _required(name: str, type_: pa.DataType, meaning: str, unit: str = "") -> Column:
    return Column(name, type_, meaning, unit, nullable=False)


def _ends(stem: str, meaning: str, unit: str = "ratio") -> tuple[Column, ...]:
    ends = (("low", "lower"), ("high", "upper"))
    return tuple(Column(f"{stem}_{end}", REAL, f"{which} bound {meaning}", unit) for end, which in ends)


def _choice(name: str, choices: object, meaning: str, nullable: bool = False) -> Column:
    return Column(name, TEXT, meaning, nullable=nullable, choices=get_args(choices))


_RUN_ID = _required("run_id", TEXT, "id of the run")
_NIGHT = _required("night", DATE, "date of the night to which the run belongs")
_WORKLOAD = _required("workload", TEXT, "name of the workload")
_RECIPE = _required("recipe", TEXT, "name of the recipe")
_RUNTIME = _required("runtime", TEXT, "runtime that executed the model")
_CANDIDATE = (_RUN_ID, _NIGHT, _WORKLOAD, _RECIPE, _RUNTIME)
_PROFILE = _choice("profile", results.Profile, "length of the benchmarks")
_FINGERPRINT = Column("fingerprint", TEXT, "SHA-256 of the host's constant properties and library versions")
_MACHINE = Column("machine", TEXT, "SHA-256 of the host's constant properties, such as processor and memory")
_ARTIFACT_DIGEST = Column("artifact_digest", TEXT, "digest of the candidate in the artifact store")
_DROP_UNIT = "quality_unit"
_UNKNOWN = Column(results.UNKNOWN, pa.map_(TEXT, TEXT), "columns that the run could not measure, with the reasons")

RUNS = Table(
    name="runs",
    meaning="One row per nightly run.",
    key=("run_id",),
    order=("night", "run_id"),
    columns=(
        _RUN_ID,
        _NIGHT,
        _required("started_at", TIME, "time when the run started", "UTC"),
        _required("finished_at", TIME, "time when the run wrote its rows", "UTC"),
        _choice("status", results.RunStatus, "whether the run completed, failed in any part, or was cancelled"),
        _PROFILE,
        _required("workloads", INT, "number of workloads in the run", "workloads"),
        _required("candidates_ok", INT, "number of candidates that the run measured", "candidates"),
        _required("candidates_failed", INT, "number of candidates that failed", "candidates"),
        _FINGERPRINT,
        Column("host", TEXT, "name of the host"),
        Column("cpu", TEXT, "model of the processor"),
        Column("evidence", TEXT, "state of the host before and after each benchmark, as JSON"),
        Column("versions", TEXT, "versions of Python and of the libraries, as JSON"),
        Column("git_commit", TEXT, "git commit of the code that ran; NULL if the code did not run from a checkout"),
        Column("prefect_flow_run_id", TEXT, "id of the Prefect flow run; NULL if Prefect did not start the run"),
        Column("message", TEXT, "one-line summary of the run"),
        _UNKNOWN,
    ),
)

_CAPACITY = (
    _choice("capacity_scenario", results.Scenario, "load under which the run measured capacity", True),
    Column("capacity_rps", REAL, "requests per second that the host serves with this candidate", "requests per second"),
    Column("capacity_ratio", REAL, "candidate capacity / baseline capacity, measured in the same sittings", "ratio"),
    *_ends("capacity_ratio", "of the 95% interval for capacity_ratio"),
    Column("capacity_p50_s", REAL, "median latency at capacity_rps; NULL in the offline scenario", "seconds"),
    Column("capacity_p99_s", REAL, "99th-percentile latency at capacity_rps, over at least 1,000 requests", "seconds"),
    Column("capacity_split", TEXT, "numbers of processes, threads per process and rows per call"),
    Column("capacity_limit", TEXT, "why the request generator limited capacity_rps; NULL if it was not the limit"),
)


MEASUREMENTS = Table(
    name="measurements",
    meaning="One row per run, workload, recipe, runtime and setting, with all measurements.",
    key=("run_id", "workload", "recipe", "runtime", "setting", "threads", "batch_size"),
    order=("night", "workload", "recipe", "runtime"),
    columns=(
        *_CANDIDATE,
        _choice("setting", results.Setting, "primary, a copy of the baseline, or the current bundle"),
        _required("threads", INT, "number of intra-op threads", "threads"),
        _required("batch_size", INT, "number of samples in a call", "samples"),
        _choice("status", results.Status, "whether the candidate succeeded, failed, or was skipped"),
        Column("stage", TEXT, "stage in which the candidate failed or was skipped; NULL if the candidate succeeded"),
        Column("error", TEXT, "reason why the candidate failed or was skipped; NULL if the candidate succeeded"),
        _required("measured_at", TIME, "time when the row was created", "UTC"),
        _PROFILE,
        Column("method", TEXT, 'quantization method, or "none" for a float model'),
        Column("engine", TEXT, "torch's quantized engine; NULL if the candidate does not use an engine"),
        Column("baseline", TEXT, "candidate with which this candidate is compared, as recipe/runtime"),
        Column("is_baseline", FLAG, "whether the candidate is the baseline"),
        _FINGERPRINT,
        Column("size_bytes", INT, "size of the candidate's serialized state", "bytes"),
        Column("baseline_size_bytes", INT, "size of the baseline's serialized state", "bytes"),
        Column("size_ratio", REAL, "baseline size / candidate size; above 1 if the candidate is smaller", "ratio"),
        Column("quality_metric", TEXT, "name of the quality metric"),
        Column("quality", REAL, "quality of the candidate", "quality_metric"),
        Column("baseline_quality", REAL, "quality of the baseline", "quality_metric"),
        Column("quality_difference", REAL, "candidate quality minus baseline quality", "quality_metric"),
        *_ends("quality_difference", "of the paired 95% interval for quality_difference", "quality_metric"),
        Column("higher_is_better", FLAG, "whether higher values of the quality metric are better"),
        Column("agreement", REAL, "fraction of samples with the same prediction as the baseline", "share"),
        Column("evaluation_mode", TEXT, 'exact, segments or plain; ends in "rows apart" if each call had a single row'),
        Column("evaluation_samples", INT, "number of evaluated samples; for text, of tokens", "samples"),
        Column("metrics", pa.map_(TEXT, REAL), "values of all evaluated metrics, keyed by metric name"),
        Column("latency_s", REAL, "median seconds per call", "seconds"),
        Column("latency_q25_s", REAL, "lower quartile of seconds per call across the blocks", "seconds"),
        Column("latency_q75_s", REAL, "upper quartile of seconds per call across the blocks", "seconds"),
        Column("latency_p50_s", REAL, "median duration of individually timed calls", "seconds"),
        Column("latency_p90_s", REAL, "90th-percentile duration of at least 100 individually timed calls", "seconds"),
        Column("latency_p99_s", REAL, "99th-percentile duration of at least 1,000 individually timed calls", "seconds"),
        Column("baseline_latency_s", REAL, "baseline's median seconds per call in the same launches", "seconds"),
        Column("speedup", REAL, "baseline latency / candidate latency; above 1 if the candidate is faster", "ratio"),
        *_ends("speedup", "of the 95% interval for speedup"),
        Column("blocks", INT, "number of timed blocks", "blocks"),
        Column("calls_per_block", INT, "number of calls in a timed block", "calls"),
        Column("load_s", REAL, "shortest time to load the model in a fresh process", "seconds"),
        Column("first_call_s", REAL, "median duration of the first call in a fresh process", "seconds"),
        Column("rss_loaded_bytes", INT, "increase in resident memory when the model is loaded", "bytes"),
        Column("peak_rss_bytes", INT, "peak resident memory minus the memory before the model was loaded", "bytes"),
        _choice("verdict", results.Verdict, "whether the A/A interval contains 1 and lies within ±5%", True),
        Column("aa_ratio", REAL, "latency of the baseline / latency of the baseline's copy", "ratio"),
        *_ends("aa", "of the 95% interval for aa_ratio"),
        Column("coverage", REAL, "fraction of the parameters that are in quantized modules", "share"),
        _ARTIFACT_DIGEST,
        Column("checkpoint_digest", TEXT, "digest of the float weights in the artifact store"),
        Column("data_digest", TEXT, "digest of the data set in the artifact store"),
        Column("calibration_digest", TEXT, "SHA-256 of the list of calibration samples"),
        Column("block_launch", pa.list_(pa.int32()), "launch number of each timed block", "launches"),
        Column("block_round", pa.list_(pa.int32()), "round number of each timed block", "rounds"),
        Column("block_s", pa.list_(REAL), "seconds per call in each timed block; see the samples view", "seconds"),
        Column("launches", INT, "number of fresh processes in which the candidate was timed", "launches"),
        *_ends("speedup_bound", "that the gate uses for speedup"),
        Column("over_current", REAL, "current bundle's latency / candidate latency", "ratio"),
        *_ends("over_current", "that the gate uses for over_current"),
        Column("quality_batched", REAL, "quality with several rows per call; see docs/quality.md", "quality_metric"),
        _MACHINE,
        Column("environment", TEXT, "versions of the host's kernel, Python and libraries, as JSON"),
        Column("recipe_digest", TEXT, "SHA-256 of the recipe without its name and runtimes"),
        Column("source_digest", TEXT, "SHA-256 of the code that built the candidate from its inputs"),
        _choice("caches", results.Caches, "caches at the start of each call that the gate uses", True),
        Column("cold_latency_s", REAL, "median seconds per call with cold caches", "seconds"),
        Column("cold_baseline_latency_s", REAL, "baseline's median seconds per call with cold caches", "seconds"),
        Column("cold_speedup", REAL, "baseline latency / candidate latency with cold caches", "ratio"),
        *_ends("cold_speedup", "of the 95% interval for cold_speedup"),
        *_ends("cold_speedup_bound", "that the gate uses for cold_speedup"),
        Column("cold_over_current", REAL, "over_current with cold caches", "ratio"),
        *_ends("cold_over_current", "that the gate uses for cold_over_current"),
        Column("cold_aa_ratio", REAL, "aa_ratio with cold caches", "ratio"),
        *_ends("cold_aa", "of the 95% interval for cold_aa_ratio"),
        Column("int8_time_share", REAL, "fraction of the operators' time spent in int8 operators", "share"),
        Column("float_operators", TEXT, "most expensive float operators, with fractions of time and reasons, as JSON"),
        Column("instructions", pa.map_(TEXT, REAL), "fraction of time spent in the loops of each instruction family"),
        Column("saturation", REAL, "change by saturation, as a fraction of the output's range", "ranges"),
        Column("doubts", TEXT, "warnings about how the candidate computes, as a JSON list of sentences"),
        Column("batch_difference", REAL, "largest change by batching, as a fraction of the output's range", "ranges"),
        Column("batch_changed", REAL, "fraction of samples whose top-1 prediction changes in one batch", "share"),
        *_CAPACITY,
        _UNKNOWN,
        Column("constant_quality", REAL, "quality of the best constant answer, if known", "quality_metric"),
        # These gains are for the calls that the gate uses.
        Column(
            "runtime_gain", REAL, "baseline latency / latency of the same runtime's float candidate, the twin", "ratio"
        ),
        *_ends("runtime_gain", "of the 95% interval for runtime_gain"),
        Column("int8_gain", REAL, "twin's latency / candidate latency; runtime_gain x int8_gain = speedup", "ratio"),
        *_ends("int8_gain", "of the 95% interval for int8_gain"),
        Column("best_float", TEXT, "fastest float candidate that could be deployed, as recipe/runtime"),
        Column("over_best_float", REAL, "best_float's latency / candidate latency, in the same launches", "ratio"),
        *_ends("over_best_float", "of the 95% interval for over_best_float"),
        *_ends("over_best_float_bound", "that the gate uses for over_best_float"),
        Column("baseline_reason", TEXT, "reason why the candidate is the baseline; NULL if the workload file names it"),
    ),
)

LAYERS = Table(
    name="layers",
    meaning="One row per run, workload, candidate and module, with its coverage and, if computed, its sensitivity.",
    key=("run_id", "workload", "recipe", "runtime", "module"),
    order=("night", "workload", "recipe", "module"),
    columns=(
        _RUN_ID,
        _NIGHT,
        _WORKLOAD,
        _RECIPE,
        _required("module", TEXT, "path of the module in the model"),
        _required("type", TEXT, "type of the module"),
        _required("parameters", INT, "number of scalars in the module's parameters", "parameters"),
        _required("quantized", FLAG, "whether the module was quantized"),
        Column("reason", TEXT, "reason why the module stayed in float; NULL if the module was quantized"),
        Column("sqnr_db", REAL, "signal-to-quantization-noise ratio of the module's output", "decibels"),
        Column("sensitivity_rank", INT, "rank of the module by quantization loss, 1 for the largest loss", "rank"),
        Column("runtime", TEXT, "runtime of the candidate; NULL for all runtimes that share the torch module"),
        _UNKNOWN,
    ),
)

PROMOTIONS = Table(
    name="promotions",
    meaning="One row per run, workload and candidate, with the gate's decision and the outcome of each rule.",
    key=("run_id", "workload", "recipe", "runtime"),
    order=("night", "workload", "recipe", "runtime"),
    columns=(
        *_CANDIDATE,
        _choice("decision", results.Decision, "whether the gate promotes, passes, holds or rejects the candidate"),
        _required("decided_at", TIME, "time when the gate made the decision", "UTC"),
        _required("objective", TEXT, "criterion by which the gate chose the best passing candidate"),
        _required("rules", TEXT, "name, bound, measured number and outcome of each rule, as JSON"),
        _required("reason", TEXT, "one-line reason for the decision"),
        Column("bundle_version", TEXT, "version of the published bundle; NULL if the run did not publish a bundle"),
        _ARTIFACT_DIGEST,
        Column("current_version", TEXT, "version of the previously current bundle; NULL if none or unknown"),
        Column("current_stays", FLAG, "whether the previously current bundle stays current; NULL if none or unknown"),
        Column("current_reason", TEXT, "reason why that bundle stays, is replaced, or could not be judged"),
        _UNKNOWN,
    ),
)

_METRIC = _choice("metric", results.FindingMetric, "metric that changed")

FINDINGS = Table(
    name="findings",
    meaning="One row per run, workload, candidate and metric that differs from earlier nights.",
    key=("run_id", "workload", "recipe", "runtime", "metric"),
    order=("night", "workload", "recipe", "runtime"),
    columns=(
        *_CANDIDATE,
        _METRIC,
        _choice("kind", results.FindingKind, "kind of change"),
        Column("tonight", REAL, "value of the metric on the night of the run", "metric"),
        *_ends("tonight", "of the 95% interval for tonight", "metric"),
        Column("reference", REAL, "value of the frozen reference", "metric"),
        Column("change", REAL, "value since the change divided by the reference, minus 1; NULL if the reference is 0"),
        Column("nights", INT, "number of nights in the reference", "nights"),
        Column("since", DATE, "first night of the change"),
        Column("cause", TEXT, "possible causes (machine, environment, data, ...), separated by commas"),
        Column("changed", TEXT, "description of the cause, with the versions before and after the change"),
        _MACHINE,
        _FINGERPRINT,
        _UNKNOWN,
    ),
)

ACKNOWLEDGEMENTS = Table(
    name="acknowledgements",
    meaning="One row per finding that a person accepted; the metric's reference begins again on the finding's night.",
    key=("run_id", "workload", "recipe", "runtime", "metric"),
    order=("night", "workload", "recipe", "runtime"),
    columns=(
        _required("run_id", TEXT, "id of the acknowledgement"),
        _required("night", DATE, "night of the accepted finding"),
        _WORKLOAD,
        _RECIPE,
        _RUNTIME,
        _METRIC,
        _required("reason", TEXT, "reason for accepting the finding"),
        _required("acknowledged_by", TEXT, "person who accepted the finding"),
        _required("acknowledged_at", TIME, "time when the finding was accepted", "UTC"),
    ),
)

TRIALS = Table(
    name="trials",
    meaning="One row per run, workload and trial of a search, with the measurements and the reason for the outcome.",
    key=("run_id", "workload", "trial"),
    order=("night", "workload", "trial"),
    columns=(
        _RUN_ID,
        _NIGHT,
        _WORKLOAD,
        _required("trial", INT, "position of the trial in the search's order, starting at 1", "trials"),
        _RECIPE,
        _RUNTIME,
        _required("method", TEXT, 'quantization method, or "none" for a float model'),
        Column("settings", TEXT, "settings of the recipe, as JSON"),
        _choice("origin", results.TrialOrigin, "workload file, search space, or a repair of another trial"),
        Column("parent", TEXT, "candidate that the trial repairs, as recipe/runtime; NULL if it repairs none"),
        _choice("outcome", results.TrialOutcome, "whether the trial was chosen, passes, failed, or is undecided"),
        Column("reason", TEXT, "one-line reason for the outcome"),
        Column("split", TEXT, "split on which the search measured quality"),
        Column("samples", INT, "number of samples on which the search measured quality", "samples"),
        Column("quality_drop", REAL, "quality lost relative to the baseline; negative if better", _DROP_UNIT),
        *_ends("quality_drop", "of the paired 95% interval for quality_drop", _DROP_UNIT),
        _choice("quality_unit", results.QualityUnit, "unit of quality_drop, as in the gate", True),
        Column("size_bytes", INT, "size of the trial's serialized state", "bytes"),
        Column("speedup", REAL, "baseline latency / candidate latency, as timed by the search", "ratio"),
        *_ends("speedup", "of the 95% interval for speedup"),
        Column("launches", INT, "number of fresh processes in which the search timed the trial", "launches"),
        Column("cost_s", REAL, "seconds that the run spent on the trial", "seconds"),
        Column("is_known", FLAG, "whether all measurements of the trial come from earlier runs"),
        _FINGERPRINT,
        Column("quality_bound", REAL, "largest allowed quality_drop; NULL if the search does not limit it", _DROP_UNIT),
        Column("objective", TEXT, "criterion for the best trial"),
        _UNKNOWN,
    ),
)

TABLES: dict[str, Table] = {
    table.name: table for table in (RUNS, MEASUREMENTS, LAYERS, PROMOTIONS, FINDINGS, ACKNOWLEDGEMENTS, TRIALS)
}

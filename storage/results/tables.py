"""The tables' columns, from which schemas, validation, the catalog and ``docs/results.md`` are generated.

A column may be added at the end of a table (older files then read as NULL); none may be removed or retyped.
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
    """A column; ``unit`` is "" for text, flags and plain ratios without a name, ``choices`` () if any value will do."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    nullable: bool = True
    choices: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """The meaning, with the values that the column may have."""
        return f"{self.meaning}: {', '.join(self.choices)}" if self.choices else self.meaning


@dataclass(frozen=True)
class Table:
    """A table; ``key`` names the columns that no two rows may share, ``order`` those that files are sorted by."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    order: tuple[str, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of its columns."""
        return frozenset(column.name for column in self.columns)

    @cached_property
    def schema(self) -> pa.Schema:
        """The pyarrow schema, with unit and meaning in each field's metadata and the version in the file's."""
        fields = [
            pa.field(column.name, column.type, column.nullable, {"unit": column.unit, "meaning": column.description})
            for column in self.columns
        ]
        return pa.schema(fields, metadata={"nightquant.table": self.name, "nightquant.schema": str(SCHEMA_VERSION)})


TEXT, FLAG, INT, REAL = pa.string(), pa.bool_(), pa.int64(), pa.float64()
DATE, TIME = pa.date32(), pa.timestamp("us", tz="UTC")


def _required(name: str, type_: pa.DataType, meaning: str, unit: str = "") -> Column:
    return Column(name, type_, meaning, unit, nullable=False)


def _choice(name: str, choices: object, meaning: str) -> Column:
    return Column(name, TEXT, meaning, nullable=False, choices=get_args(choices))


_RUN_ID = _required("run_id", TEXT, "the nightly run that the row belongs to")
_NIGHT = _required("night", DATE, "the date that the run counts for")
_WORKLOAD = _required("workload", TEXT, "name of the workload")
_RECIPE = _required("recipe", TEXT, "name of the recipe")
_RUNTIME = _required("runtime", TEXT, "the runtime that executed the model")
_PROFILE = _choice("profile", results.Profile, "length of the benchmarks")
_FINGERPRINT = Column("fingerprint", TEXT, "SHA-256 of what is constant about the host and its libraries")
_MACHINE = Column("machine", TEXT, "SHA-256 of what is constant about the host: processor, memory, what it is")
_ARTIFACT_DIGEST = Column("artifact_digest", TEXT, "the candidate in the artifact store")
_UNKNOWN = Column(
    results.UNKNOWN, pa.map_(TEXT, TEXT), "columns of this row that could not be measured or recorded, and why"
)

RUNS = Table(
    name="runs",
    meaning="One row per nightly run.",
    key=("run_id",),
    order=("night", "run_id"),
    columns=(
        _RUN_ID,
        _NIGHT,
        _required("started_at", TIME, "when the flow started", "UTC"),
        _required("finished_at", TIME, "when the rows were written", "UTC"),
        _choice("status", results.RunStatus, "outcome; failed if any of the work failed"),
        _PROFILE,
        _required("workloads", INT, "workloads asked for", "workloads"),
        _required("candidates_ok", INT, "candidates measured", "candidates"),
        _required("candidates_failed", INT, "candidates that failed", "candidates"),
        _FINGERPRINT,
        Column("host", TEXT, "host name"),
        Column("cpu", TEXT, "processor model"),
        Column("evidence", TEXT, "the machine's state before and after each benchmark, as JSON"),
        Column("versions", TEXT, "versions of Python and of the libraries, as JSON"),
        Column("git_commit", TEXT, "commit of the checkout that ran, or NULL outside one"),
        Column("prefect_flow_run_id", TEXT, "the Prefect flow run, or NULL"),
        Column("message", TEXT, "the run's outcome in one line"),
        _UNKNOWN,
    ),
)

MEASUREMENTS = Table(
    name="measurements",
    meaning="One row per run, workload, recipe, runtime and setting: what one candidate measured.",
    key=("run_id", "workload", "recipe", "runtime", "setting", "threads", "batch_size", "sequence_length"),
    order=("night", "workload", "recipe", "runtime"),
    columns=(
        _RUN_ID,
        _NIGHT,
        _WORKLOAD,
        _RECIPE,
        _RUNTIME,
        _choice(
            "setting",
            results.Setting,
            "the primary setting, further sizes and thread counts, the baseline's copy, or the current bundle",
        ),
        _required("threads", INT, "intra-op threads", "threads"),
        _required("batch_size", INT, "samples in a call", "samples"),
        _choice("status", results.Status, "outcome of the candidate; skipped: the machine lacks what it needs"),
        Column("stage", TEXT, "the stage that failed, or NULL"),
        Column("error", TEXT, "why the candidate failed, or NULL"),
        _required("measured_at", TIME, "when the row was created", "UTC"),
        _PROFILE,
        Column("method", TEXT, "quantization method; none for a float model"),
        Column("engine", TEXT, "quantized engine, or NULL"),
        Column("baseline", TEXT, "the candidate compared to, as recipe/runtime"),
        Column("is_baseline", FLAG, "whether the row is the baseline itself"),
        _FINGERPRINT,
        Column("size_bytes", INT, "serialized state", "bytes"),
        Column("baseline_size_bytes", INT, "serialized state of the baseline", "bytes"),
        Column("size_ratio", REAL, "baseline size / candidate size; above 1 is smaller", "ratio"),
        Column("quality_metric", TEXT, "name of the quality metric"),
        Column("quality", REAL, "the candidate's quality", "quality_metric"),
        Column("baseline_quality", REAL, "the baseline's quality", "quality_metric"),
        Column("quality_difference", REAL, "quality - baseline quality", "quality_metric"),
        Column("quality_difference_low", REAL, "lower end of the paired 95% interval", "quality_metric"),
        Column("quality_difference_high", REAL, "upper end of the paired 95% interval", "quality_metric"),
        Column("higher_is_better", FLAG, "direction of the quality metric"),
        Column("agreement", REAL, "share of samples on which candidate and baseline predict the same", "share"),
        Column("evaluation_mode", TEXT, "how quality was computed: exact, segments or plain, or with rows apart"),
        Column("evaluation_samples", INT, "samples (tokens for text) evaluated", "samples"),
        Column("metrics", pa.map_(TEXT, REAL), "every number that the evaluation computed, by name"),
        Column("latency_s", REAL, "median seconds of one call", "seconds"),
        Column("latency_q25_s", REAL, "lower quartile over blocks", "seconds"),
        Column("latency_q75_s", REAL, "upper quartile over blocks", "seconds"),
        Column("latency_p50_s", REAL, "median over single calls", "seconds"),
        Column("latency_p90_s", REAL, "90th percentile over single calls, from 100 calls on", "seconds"),
        Column("latency_p99_s", REAL, "99th percentile over single calls, from 1,000 calls on", "seconds"),
        Column("baseline_latency_s", REAL, "median seconds of the baseline in the same launches", "seconds"),
        Column("speedup", REAL, "baseline latency / candidate latency; above 1 is faster", "ratio"),
        Column("speedup_low", REAL, "lower end of its 95% interval", "ratio"),
        Column("speedup_high", REAL, "upper end of its 95% interval", "ratio"),
        Column("blocks", INT, "timed blocks", "blocks"),
        Column("calls_per_block", INT, "calls in a timed block", "calls"),
        Column("load_s", REAL, "median seconds to load the model in a fresh process", "seconds"),
        Column("first_call_s", REAL, "median seconds of the first call in a fresh process", "seconds"),
        Column("rss_loaded_bytes", INT, "resident memory above the process before loading, once loaded", "bytes"),
        Column("peak_rss_bytes", INT, "peak resident memory above the process before loading", "bytes"),
        Column(
            "verdict",
            TEXT,
            "whether the machine resolved 5%; inconclusive if the A/A interval is wider or excludes 1",
            choices=get_args(results.Verdict),
        ),
        Column("aa_ratio", REAL, "the baseline against a copy of itself", "ratio"),
        Column("aa_low", REAL, "lower end of its 95% interval", "ratio"),
        Column("aa_high", REAL, "upper end of its 95% interval", "ratio"),
        Column("coverage", REAL, "share of the parameters that are in quantized modules", "share"),
        Column("modules_quantized", INT, "leaf modules quantized", "modules"),
        Column("modules_total", INT, "leaf modules with parameters", "modules"),
        _ARTIFACT_DIGEST,
        Column("checkpoint_digest", TEXT, "the float weights in the artifact store"),
        Column("data_digest", TEXT, "the data set in the artifact store"),
        Column("calibration_digest", TEXT, "SHA-256 of the list of calibration samples"),
        Column("block_launch", pa.list_(pa.int32()), "launch of each timed block", "launches"),
        Column("block_round", pa.list_(pa.int32()), "round of each timed block", "rounds"),
        Column("block_s", pa.list_(REAL), "seconds a call in each timed block; see the samples view", "seconds"),
        Column("launches", INT, "fresh processes that the candidate was timed in", "launches"),
        Column("speedup_bound_low", REAL, "lower bound of the speed-up that the gate decides by", "ratio"),
        Column("speedup_bound_high", REAL, "upper bound of the speed-up that the gate decides by", "ratio"),
        Column("over_incumbent", REAL, "latency of the current bundle / candidate latency; above 1 is faster", "ratio"),
        Column("over_incumbent_low", REAL, "its lower bound that the gate decides by", "ratio"),
        Column("over_incumbent_high", REAL, "its upper bound that the gate decides by", "ratio"),
        Column("quality_batched", REAL, "quality with rows together in a call; see docs/quality.md", "quality_metric"),
        _MACHINE,
        Column("environment", TEXT, "kernel, Python and library versions of the host that timed it, as JSON"),
        Column("recipe_digest", TEXT, "SHA-256 of the recipe, but for its name and runtimes"),
        Column("source_digest", TEXT, "SHA-256 of the code that made the candidate from its inputs"),
        Column("caches", TEXT, "by calls with which caches the gate decides", choices=get_args(results.Caches)),
        Column("cold_latency_s", REAL, "median seconds of one call with cold caches", "seconds"),
        Column("cold_baseline_latency_s", REAL, "the same of the baseline in the same launches", "seconds"),
        Column("cold_speedup", REAL, "baseline latency / candidate latency with cold caches", "ratio"),
        Column("cold_speedup_low", REAL, "lower end of its 95% interval", "ratio"),
        Column("cold_speedup_high", REAL, "upper end of its 95% interval", "ratio"),
        Column("cold_speedup_bound_low", REAL, "its lower bound that the gate decides by if caches is cold", "ratio"),
        Column("cold_speedup_bound_high", REAL, "its upper bound that the gate decides by if caches is cold", "ratio"),
        Column("cold_over_incumbent", REAL, "over_incumbent with cold caches", "ratio"),
        Column("cold_over_incumbent_low", REAL, "its lower bound that the gate decides by if caches is cold", "ratio"),
        Column("cold_over_incumbent_high", REAL, "its upper bound that the gate decides by if caches is cold", "ratio"),
        Column("cold_aa_ratio", REAL, "the baseline against a copy of itself with cold caches", "ratio"),
        Column("cold_aa_low", REAL, "lower end of its 95% interval", "ratio"),
        Column("cold_aa_high", REAL, "upper end of its 95% interval", "ratio"),
        Column("cold_launch", pa.list_(pa.int32()), "launch of each call with cold caches", "launches"),
        Column("cold_s", pa.list_(REAL), "seconds of each call with cold caches", "seconds"),
        Column("threads_used", REAL, "threads kept busy by its calls, the most in any launch", "busy threads"),
        Column("int8_time_share", REAL, "share of its operators' time in those that compute in int8", "share"),
        Column("float_operators", TEXT, "the most expensive operators in float, with shares and reasons, as JSON"),
        Column("instructions", pa.map_(TEXT, REAL), "shares of its time in loops of each kind of arithmetic"),
        Column(
            "saturation", REAL, "distance from the same arithmetic without saturation / the output's range", "ranges"
        ),
        Column("doubts", TEXT, "what speaks against int8 having run as promised, a sentence each, as a JSON list"),
        Column("batch_difference", REAL, "a batch's distance from its rows one by one / the output's range", "ranges"),
        Column("batch_changed", REAL, "share of a batch's rows that choose another class than one by one", "share"),
        Column("sequence_length", INT, "steps in a call, where they are not those of the primary setting", "steps"),
        _UNKNOWN,
    ),
)

LAYERS = Table(
    name="layers",
    meaning="One row per run, workload, candidate and module: coverage, and sensitivity where it was computed.",
    key=("run_id", "workload", "recipe", "runtime", "module"),
    order=("night", "workload", "recipe", "module"),
    columns=(
        _RUN_ID,
        _NIGHT,
        _WORKLOAD,
        _RECIPE,
        _required("module", TEXT, "the module's path in the model"),
        _required("type", TEXT, "the module's type"),
        _required("parameters", INT, "scalars in its parameters", "parameters"),
        _required("quantized", FLAG, "whether it was quantized"),
        Column("reason", TEXT, "why it stayed float, or NULL"),
        Column("sqnr_db", REAL, "signal to quantization noise of its output on the same input", "decibels"),
        Column("sensitivity_rank", INT, "1 for the module that loses most", "rank"),
        Column("kept_float_quality", REAL, "quality with this and every worse module kept float", "quality_metric"),
        Column("runtime", TEXT, "runtime that it was made for, or NULL: all that share the torch module"),
        _UNKNOWN,
    ),
)

PROMOTIONS = Table(
    name="promotions",
    meaning="One row per run, workload and candidate: what the gate decided, rule by rule.",
    key=("run_id", "workload", "recipe", "runtime"),
    order=("night", "workload", "recipe", "runtime"),
    columns=(
        _RUN_ID,
        _NIGHT,
        _WORKLOAD,
        _RECIPE,
        _RUNTIME,
        _choice("decision", results.Decision, "the gate's decision; pass if it is good, but another is better"),
        _required("decided_at", TIME, "when the gate was evaluated", "UTC"),
        _required("objective", TEXT, "what the best passing candidate was chosen by"),
        _required("rules", TEXT, "each rule's name, bound, the number it saw and its outcome, as JSON"),
        _required("reason", TEXT, "the decision in one line"),
        Column("bundle_version", TEXT, "version of the bundle that was handed over, or NULL"),
        _ARTIFACT_DIGEST,
        Column("incumbent_version", TEXT, "version of the bundle that was current before, or NULL"),
        Column("incumbent_stays", FLAG, "whether it stays current, or NULL if there was none or it is unknown"),
        Column("incumbent_reason", TEXT, "why it stays or goes, or is unknown; NULL if there was none"),
        _UNKNOWN,
    ),
)

_METRIC = _choice("metric", results.FindingMetric, "the number that changed")

FINDINGS = Table(
    name="findings",
    meaning="One row per run, workload, candidate and metric: what the comparison with earlier nights found.",
    key=("run_id", "workload", "recipe", "runtime", "metric"),
    order=("night", "workload", "recipe", "runtime"),
    columns=(
        _RUN_ID,
        _NIGHT,
        _WORKLOAD,
        _RECIPE,
        _RUNTIME,
        _METRIC,
        _choice("kind", results.FindingKind, "what happened to it"),
        Column("tonight", REAL, "its value on the night", "metric"),
        Column("tonight_low", REAL, "lower end of its 95% interval", "metric"),
        Column("tonight_high", REAL, "upper end of its 95% interval", "metric"),
        Column("reference", REAL, "the frozen reference", "metric"),
        Column("change", REAL, "value since the change / reference - 1; NULL if the reference is 0"),
        Column("nights", INT, "nights that the reference was taken over", "nights"),
        Column("since", DATE, "the first night of the change"),
        Column(
            "cause", TEXT, "what changed with it, comma-separated: machine, environment, data, ...; empty if unknown"
        ),
        Column("changed", TEXT, "the same in words, with the versions before and after"),
        _MACHINE,
        _FINGERPRINT,
        _UNKNOWN,
    ),
)

ACKNOWLEDGEMENTS = Table(
    name="acknowledgements",
    meaning="One row per finding that somebody accepted: from that night on it has a new reference.",
    key=("run_id", "workload", "recipe", "runtime", "metric"),
    order=("night", "workload", "recipe", "runtime"),
    columns=(
        _required("run_id", TEXT, "the acknowledgement that the row belongs to"),
        _required("night", DATE, "the night whose finding was accepted"),
        _WORKLOAD,
        _RECIPE,
        _RUNTIME,
        _METRIC,
        _required("reason", TEXT, "why it is accepted"),
        _required("acknowledged_by", TEXT, "who accepted it"),
        _required("acknowledged_at", TIME, "when it was accepted", "UTC"),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table for table in (RUNS, MEASUREMENTS, LAYERS, PROMOTIONS, FINDINGS, ACKNOWLEDGEMENTS)
}

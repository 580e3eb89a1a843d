-- A summary of each workload's latest night, with the best passing candidate first. The latest view contains
-- all measurements of the latest night, and the outcomes view the unrounded values.
-- example: from leaderboard where workload = 'word-lm'
-- column rank: rank in the workload, 1 for the best candidate; passing candidates come first
-- column candidate: name of the candidate, as recipe/runtime
-- column decision: one of promote, stays (remains current), pass, hold, reject, failed, skipped or baseline
-- column quality_difference: candidate quality minus baseline quality, in the workload's metric, rounded to three significant digits
-- column size_ratio: baseline size / candidate size, rounded to three significant digits; above 1 if the candidate is smaller
-- column over_best_float: latency of the fastest float candidate that could be deployed / candidate latency, rounded to three significant digits
-- column int8_gain: latency of the float candidate of the same runtime / candidate latency, rounded to three significant digits
-- column runtime_gain: baseline latency / latency of the float candidate of the same runtime, rounded to three significant digits
-- column speedup: baseline latency / candidate latency over paired launches, rounded to three significant digits; above 1 if the candidate is faster
-- column interval: 95% interval for speedup, formatted as text
-- column cold_speedup: speed-up with cold caches; the workload file specifies whether the gate uses warm or cold calls
-- column latency_ms: milliseconds per call, computed as baseline latency / speedup; the latest view contains the candidate's own median latency
-- column memory_mb: peak resident memory minus the resident memory before the model was loaded, in millions of bytes
-- column capacity_rps: requests per second that the host serves with the candidate; NULL if the run did not measure capacity
-- column capacity_ratio: candidate capacity / baseline capacity, rounded to three significant digits; above 1 if the candidate serves more requests per second
-- column capacity_p50_ms: median latency at capacity_rps, in milliseconds; NULL in the offline scenario
-- column capacity_p99_ms: 99th percentile of the latency at capacity_rps, in milliseconds
-- column why: first line of the gate's reason or of the error; the outcomes view contains the full text
create macro internal.to_three_digits(number) as
    case
        when number = 0 then 0.0::double
        else round(number::double, greatest(0, 2 - floor(log10(abs(number)))::integer))
    end;

create view leaderboard as
select
    workload, rank, candidate, became as decision,
    internal.to_three_digits(size_ratio) as size_ratio,
    internal.to_three_digits(quality_difference) as quality_difference,
    internal.to_three_digits(over_best_float) as over_best_float,
    internal.to_three_digits(int8_gain) as int8_gain,
    internal.to_three_digits(runtime_gain) as runtime_gain,
    internal.to_three_digits(coalesce(speedup, case when is_baseline then 1.0 end)) as speedup,
    case
        when is_baseline then null
        when speedup_high < 10 then format('{:.2f}–{:.2f}', speedup_low, speedup_high)
        else format('{:.1f}–{:.1f}', speedup_low, speedup_high)
    end as interval,
    internal.to_three_digits(cold_speedup) as cold_speedup,
    internal.to_three_digits(coalesce(baseline_latency_s / speedup, latency_s) * 1e3) as latency_ms,
    internal.to_three_digits(peak_rss_bytes / 1e6) as memory_mb,
    internal.to_three_digits(capacity_rps) as capacity_rps,
    internal.to_three_digits(capacity_ratio) as capacity_ratio,
    internal.to_three_digits(capacity_p50_s * 1e3) as capacity_p50_ms,
    internal.to_three_digits(capacity_p99_s * 1e3) as capacity_p99_ms,
    regexp_replace(split_part(why, chr(10), 1), '^(stays: |passes all [0-9]+ rules; )', '') as why
from outcomes
where setting = 'primary'
order by workload, rank;

-- Each workload's newest night for people, the best passing candidate first. All that was measured is in latest, and
-- leaderboard_on(date '2026-11-21') has every column of a night, leaderboard_on(null) of the newest.
-- example: from leaderboard where workload = 'word-lm'
-- column rank: 1 for the best candidate of the workload, those that pass before those that do not
-- column candidate: recipe/runtime
-- column decision: promote, stays (it is the current bundle and remains it), pass, hold or reject; baseline or failed
-- column quality_difference: quality - baseline quality, in the workload's metric, rounded to three digits
-- column size_ratio: baseline size / candidate size, rounded to three digits; above 1 is smaller
-- column speedup: baseline latency / candidate latency over paired launches, rounded to three digits; above 1 is faster
-- column interval: the 95% interval of the speed-up, as text
-- column cold_speedup: the same of calls with cold caches; the best is the one by the caches that the gate decides by
-- column latency_ms: milliseconds a call: the baseline's median / speedup, so that the two agree; its own is in latest
-- column memory_mb: peak resident memory above the process before loading, in millions of bytes
-- column why: the gate's reason, less what the decision says already (promotions has it whole), or the failure
--
-- Of leaderboard_on's columns, speedup_over_best_float compares with the host's fastest float candidate that night, not
-- with the one that is the baseline.
create macro leaderboard_on(asked) as table
select
    workload, rank,
    recipe, runtime, method, status, passes, decision, is_baseline, baseline,
    size_bytes, baseline_size_bytes, size_ratio,
    quality_metric, quality, baseline_quality, quality_difference, quality_difference_low, quality_difference_high,
    higher_is_better, agreement, quality_batched,
    latency_s, baseline_latency_s, coalesce(speedup, case when is_baseline then 1.0 end) as speedup, speedup_low,
    speedup_high, speedup_over_best_float, best_float,
    peak_rss_bytes, coverage, verdict, why as reason, stage, error, night, run_id, profile, fingerprint, artifact_digest,
    incumbent_stays,
    caches, cold_latency_s, cold_baseline_latency_s, cold_speedup, cold_speedup_low, cold_speedup_high, threads_used
from outcomes_on(asked)
where setting = 'primary'
order by workload, rank;

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
    internal.to_three_digits(coalesce(speedup, case when is_baseline then 1.0 end)) as speedup,
    case
        when is_baseline then null
        when speedup_high < 10 then format('{:.2f}–{:.2f}', speedup_low, speedup_high)
        else format('{:.1f}–{:.1f}', speedup_low, speedup_high)
    end as interval,
    internal.to_three_digits(cold_speedup) as cold_speedup,
    internal.to_three_digits(coalesce(baseline_latency_s / speedup, latency_s) * 1e3) as latency_ms,
    internal.to_three_digits(peak_rss_bytes / 1e6) as memory_mb,
    regexp_replace(split_part(why, chr(10), 1), '^(stays: |passes all [0-9]+ rules; )', '') as why
from outcomes
where setting = 'primary'
order by workload, rank;

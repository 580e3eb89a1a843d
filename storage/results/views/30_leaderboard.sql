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
-- column latency_ms: milliseconds a call: the baseline's median / speedup, so that the two agree; its own is in latest
-- column memory_mb: peak resident memory above the process before loading, in millions of bytes
-- column why: the gate's reason, less what the decision says already (promotions has it whole), or the failure
--
-- Of leaderboard_on's columns, speedup_over_best_float compares with the host's fastest float candidate that night, not
-- with the one that is the baseline.
create macro leaderboard_on(asked) as table
with tonight as materialized (
    select rows.*
    from measurements as rows
    join newest_nights(asked) as newest using (workload, night)
    where setting = 'primary'
),
newest as (
    select * from tonight
    qualify row_number() over (
        partition by workload, recipe, runtime order by measured_at desc, run_id desc, attempt desc
    ) = 1
),
best_float as (  -- of each host and baseline: the night's runs need not share them, and ratios of others do not compare
    select
        workload, fingerprint, baseline,
        max(coalesce(speedup, 1.0)) as best_float_speedup,
        arg_max(recipe || '/' || runtime, coalesce(speedup, 1.0)) as best_float
    from (
        select * from tonight
        where method = 'none' and status = 'ok' and (speedup is not null or is_baseline)
        qualify row_number() over (
            partition by workload, fingerprint, baseline, recipe, runtime
            order by measured_at desc, run_id desc, attempt desc
        ) = 1
    )
    group by workload, fingerprint, baseline
),
judged as (
    select
        newest.*,
        promotions.decision,
        promotions.objective,
        promotions.reason,
        promotions.incumbent_stays,
        coalesce(promotions.decision in ('promote', 'pass'), false) as passes,
        best_float.best_float,
        coalesce(newest.speedup, case when newest.is_baseline then 1.0 end) as ratio,
        ratio / best_float.best_float_speedup as speedup_over_best_float
    from newest
    left join promotions using (run_id, night, workload, recipe, runtime)
    left join best_float
        on best_float.workload = newest.workload
        and best_float.fingerprint is not distinct from newest.fingerprint
        and best_float.baseline is not distinct from newest.baseline
)
select
    workload,
    row_number() over (
        partition by workload
        order by passes desc, decision = 'promote' desc nulls last, status = 'ok' desc,
            case when objective = 'smallest' then size_ratio else ratio end desc nulls last, recipe, runtime
    ) as rank,
    recipe, runtime, method, status, passes, decision, is_baseline, baseline,
    size_bytes, baseline_size_bytes, size_ratio,
    quality_metric, quality, baseline_quality, quality_difference, quality_difference_low, quality_difference_high,
    higher_is_better, agreement, quality_batched,
    latency_s, baseline_latency_s, ratio as speedup, speedup_low, speedup_high,
    speedup_over_best_float, best_float,
    peak_rss_bytes, coverage, verdict, reason, stage, error, night, run_id, profile, fingerprint, artifact_digest, incumbent_stays
from judged
order by workload, rank;

create macro internal.to_three_digits(number) as
    case
        when number = 0 then 0.0::double
        else round(number::double, greatest(0, 2 - floor(log10(abs(number)))::integer))
    end;

create view leaderboard as
select
    workload, rank,
    recipe || '/' || runtime as candidate,
    case
        when decision = 'promote' and incumbent_stays then 'stays'
        when decision is not null then decision
        when status in ('failed', 'skipped') then status
        when is_baseline then 'baseline'
    end as decision,
    internal.to_three_digits(size_ratio) as size_ratio,
    internal.to_three_digits(quality_difference) as quality_difference,
    internal.to_three_digits(speedup) as speedup,
    case
        when is_baseline then null
        when speedup_high < 10 then format('{:.2f}–{:.2f}', speedup_low, speedup_high)
        else format('{:.1f}–{:.1f}', speedup_low, speedup_high)
    end as interval,
    internal.to_three_digits(coalesce(baseline_latency_s / speedup, latency_s) * 1e3) as latency_ms,
    internal.to_three_digits(peak_rss_bytes / 1e6) as memory_mb,
    case
        when status in ('failed', 'skipped') then concat_ws(': ', stage, split_part(error, chr(10), 1))
        else regexp_replace(reason, '^(stays: |passes all [0-9]+ rules; )', '')
    end as why
from leaderboard_on(null::date)
order by workload, rank;

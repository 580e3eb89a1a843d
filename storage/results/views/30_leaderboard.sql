-- Each workload's newest night, the best passing candidate first.
-- speedup_over_best_float compares with the host's fastest float candidate that night, not with the one that is the
-- baseline.
-- example: select * from leaderboard where workload = 'word-lm'
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
    peak_rss_bytes, coverage, verdict, reason, stage, error, night, run_id, profile, fingerprint, artifact_digest
from judged
order by workload, rank;

create view leaderboard as select * from leaderboard_on(null::date);

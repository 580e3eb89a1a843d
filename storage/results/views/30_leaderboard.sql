-- Each workload's newest night, the best passing candidate first.
-- speedup_over_best_float compares with the fastest float candidate, not with whichever float was named the baseline.
-- example: select * from leaderboard where workload = 'word-lm'
create macro leaderboard_on(asked) as table
with newest as (
    select rows.*
    from measurements as rows
    join newest_runs(asked) as last using (workload, night, run_id)
    where setting = 'primary'
    qualify attempt = max(attempt) over (partition by workload, recipe, runtime)
),
best_float as (
    select
        workload,
        max(coalesce(speedup, 1.0)) as best_float_speedup,
        arg_max(recipe || '/' || runtime, coalesce(speedup, 1.0)) as best_float
    from newest
    where method = 'none' and status = 'ok' and (speedup is not null or is_baseline)
    group by workload
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
    left join best_float using (workload)
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
    higher_is_better, agreement,
    latency_s, baseline_latency_s, ratio as speedup, speedup_low, speedup_high,
    speedup_over_best_float, best_float,
    peak_rss_bytes, coverage, verdict, reason, stage, error, night, run_id, profile, fingerprint, artifact_digest
from judged
order by workload, rank;

create view leaderboard as select * from leaderboard_on(null::date);

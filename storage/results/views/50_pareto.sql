-- The newest candidates that no other beats in size, speed-up and quality at once.
-- example: select workload, recipe, runtime, size_bytes, speedup, quality from pareto
-- column passes: whether the gate's decision is promote or pass
create macro pareto_on(asked) as table
with measured as (
    select *, case when higher_is_better then quality else -quality end as goodness
    from leaderboard_on(asked)
    where status = 'ok' and size_bytes is not null and speedup is not null and quality is not null
)
select
    workload, recipe, runtime, size_bytes, size_ratio, speedup, speedup_low, speedup_high,
    quality_metric, quality, quality_difference, passes, verdict, night, run_id
from measured as kept
where not exists (
    select 1 from measured as other
    where other.workload = kept.workload
        and other.size_bytes <= kept.size_bytes
        and other.speedup >= kept.speedup
        and other.goodness >= kept.goodness
        and (other.size_bytes < kept.size_bytes or other.speedup > kept.speedup or other.goodness > kept.goodness)
)
order by workload, size_bytes;

create view pareto as select * from pareto_on(null::date);

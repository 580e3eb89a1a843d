-- The candidates of the latest night that are Pareto-optimal in size, deciding_speedup and quality.
-- example: select workload, recipe, runtime, size_bytes, speedup, quality from pareto
-- column passes: whether the gate's decision is promote or pass
create view pareto as
select
    workload, recipe, runtime, size_bytes, size_ratio, coalesce(speedup, 1.0) as speedup, speedup_low, speedup_high,
    quality_metric, quality, quality_difference, passes, verdict, night, run_id
from outcomes
where unbeaten
order by workload, size_bytes;

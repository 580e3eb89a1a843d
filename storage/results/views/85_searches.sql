-- The searches for recipes: one row per workload and night, with the best of the chosen trials. If several runs
-- searched on one night, only the last run counts.
-- example: select night, workload, trials, passing, spent_s, recipe, runtime, speedup, quality_drop from searches
-- column trials: number of trials that the search considered
-- column passing: number of passing trials, including the chosen trials
-- column spent_s: seconds that the run spent on the search's trials
-- column recipe: recipe of the best trial that the search chose; NULL if the search did not choose a trial
-- column runtime: runtime of the best trial that the search chose
create view searches as
select workload, night, run_id, trials, passing, spent_s, best.*
from (
    select workload, night, run_id, count(*) as trials, coalesce(sum(cost_s), 0) as spent_s,
        count(*) filter (outcome in ('passing', 'chosen')) as passing,
        arg_max(
            {
                recipe: recipe, runtime: runtime, speedup: speedup, size_bytes: size_bytes, quality_drop: quality_drop,
                quality_unit: quality_unit
            },
            (coalesce(if(objective = 'smallest', -size_bytes, speedup), '-infinity'::double), -trial)
        ) filter (outcome = 'chosen') as best
    from trials
    group by all
)
left join (select workload, run_id, max(measured_at) as measured_at from measurements group by all)
    using (workload, run_id)
qualify row_number() over (partition by workload, night order by measured_at desc nulls last, run_id desc) = 1
order by night desc, workload;

-- Every row of each workload's newest night; if several runs measured a candidate that night, the last run's.
-- example: select workload, recipe, runtime, setting, latency_s, verdict from latest
--
-- A run may be limited to some recipes: it replaces what it measured, not what an earlier run measured.
-- In two steps, because the night is found without looking at the runs, and then only its rows are read.
-- newest_nights(asked, nights := 30) has the last nights up to `asked` of the workloads that were measured on it.
create macro newest_nights(asked, nights := 1) as table
select workload, night
from (select distinct workload, night from measurements where asked is null or night <= asked)
qualify row_number() over (partition by workload order by night desc) <= nights
    and (asked is null or max(night) over (partition by workload) = asked);

create view latest as
select rows.*
from measurements as rows
join (
    select workload, recipe, runtime, night, arg_max(run_id, (measured_at, run_id)) as run_id
    from measurements join newest_nights(null::date) using (workload, night)
    group by workload, recipe, runtime, night
) using (workload, recipe, runtime, night, run_id)
order by workload, recipe, runtime, setting, threads, batch_size, sequence_length nulls first;

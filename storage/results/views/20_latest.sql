-- Every row of each workload's newest night; if several runs measured a candidate that night, the last run's.
-- example: select workload, recipe, runtime, setting, latency_s, verdict from latest
--
-- A run may be limited to some recipes: it replaces what it measured, not what an earlier run measured.
-- In two steps, because the night is found without looking at the runs, and then only its rows are read.
create macro newest_nights(asked) as table
select workload, max(night) as night from measurements where asked is null or night = asked group by workload;

create macro newest_runs(asked) as table
select workload, recipe, runtime, night, arg_max(run_id, (measured_at, run_id)) as run_id
from measurements join newest_nights(asked) as newest using (workload, night)
group by workload, recipe, runtime, night;

create view latest as
select rows.*
from measurements as rows
join newest_runs(null::date) as newest using (workload, recipe, runtime, night, run_id)
order by workload, recipe, runtime, setting, threads, batch_size, sequence_length nulls first, attempt;

-- Every row of each workload's newest night; of several runs that night, the last one.
-- example: select workload, recipe, runtime, setting, latency_s, verdict from latest
--
-- In two steps, because a night is found without a look at the runs, and then only its rows are read.
create macro newest_runs(asked) as table
with nights as (
    select workload, max(night) as night from measurements where asked is null or night = asked group by workload
)
select workload, night, arg_max(run_id, measured_at) as run_id
from measurements join nights using (workload, night)
group by workload, night;

create view latest as
select rows.*
from measurements as rows
join newest_runs(null::date) as newest using (workload, night, run_id)
order by workload, recipe, runtime, setting, threads, batch_size, attempt;

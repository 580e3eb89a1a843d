-- Every row of each workload's newest night; of several runs that night, the last one.
-- example: select workload, recipe, runtime, setting, latency_s, verdict from latest
create view latest as
select rows.*
from measurements as rows
join (
    select workload, arg_max(run_id, (night, measured_at)) as run_id from measurements group by workload
) as newest using (workload, run_id)
order by workload, recipe, runtime, setting, threads, batch_size, attempt;

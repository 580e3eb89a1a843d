-- Every measurement from each workload's latest night. If several runs measured a candidate on the latest night, only
-- the last run counts.
-- example: select workload, recipe, runtime, setting, latency_s, verdict from latest
--
-- A run may be limited to some recipes, so it replaces only the candidates that it measured.
-- The query finds the night without the runs, and then reads only the rows of that night.
-- newest_nights(asked, nights := 30) returns the last 30 nights up to `asked`, for the workloads measured on `asked`.
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
order by workload, recipe, runtime, setting, threads, batch_size;

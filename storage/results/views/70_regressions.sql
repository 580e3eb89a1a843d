-- What the last run of each workload's newest night found against the nights before; without what was acknowledged.
-- example: select workload, recipe, runtime, kind, metric, tonight, reference, change, since, changed from regressions
create view regressions as
select workload, recipe, runtime, kind, metric, tonight, tonight_low, tonight_high, reference, change, nights, since,
    cause, changed, machine, fingerprint, night, run_id
from findings
where (workload, run_id) in (
        select workload, arg_max(run_id, (measured_at, run_id))
        from measurements join newest_nights(null::date) using (workload, night)
        group by workload
    )
    and not exists (
        select 1 from acknowledgements as accepted
        where accepted.workload = findings.workload and accepted.recipe = findings.recipe
            and accepted.runtime = findings.runtime and accepted.metric = findings.metric
            and accepted.night >= findings.night
    )
order by workload, recipe, runtime, metric;

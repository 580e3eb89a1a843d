-- Every failed candidate, latest night first, with the failed stage and the reason for the failure. If several
-- candidates share a reason, only the first row contains the full text; the other rows contain only the first line.
-- example: select night, workload, recipe, stage, error from failures limit 20
create view failures as
select night, run_id, workload, recipe, runtime, setting, stage,
    case row_number() over (partition by run_id, workload, stage, error order by recipe, runtime, setting)
        when 1 then error else split_part(error, chr(10), 1) end as error,
    profile, fingerprint, measured_at
from measurements
where status = 'failed'
order by night desc, workload, recipe, runtime;

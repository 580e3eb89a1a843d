-- Every candidate that failed, newest first, with the stage and the reason.
-- example: select night, workload, recipe, stage, error from failures limit 20
create view failures as
select night, run_id, workload, recipe, runtime, setting, attempt, stage, error, profile, fingerprint, measured_at
from measurements
where status = 'failed'
order by night desc, workload, recipe, runtime;

-- The primary measurement of each candidate in each run: the rerun, if the benchmark was inconclusive and repeated.
-- example: select night, recipe, runtime, verdict from candidates where workload = 'word-lm' order by night desc
create view candidates as
select * from measurements as kept
where setting = 'primary'
    and not exists (
        select 1 from measurements as rerun
        where rerun.attempt > 1
            and rerun.attempt > kept.attempt
            and rerun.setting = 'primary'
            and rerun.run_id = kept.run_id
            and rerun.workload = kept.workload
            and rerun.recipe = kept.recipe
            and rerun.runtime = kept.runtime
    );

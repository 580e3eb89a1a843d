-- Raw calls with cold caches, one row each: the list columns of a measurement, unnested.
-- example: select recipe, runtime, median(seconds) from cold_samples where workload = 'word-lm' group by recipe, runtime
-- column launch: launch (a fresh process) in which the call was timed
-- column seconds: seconds of the call
create view cold_samples as
select
    run_id, night, workload, recipe, runtime, setting, threads, batch_size, fingerprint,
    unnest(cold_launch) as launch,
    unnest(cold_s) as seconds,
    sequence_length
from internal.raw_blocks;

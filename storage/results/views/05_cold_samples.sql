-- Raw timings of calls with cold caches, one row per call, from the list columns of the measurements table.
-- example: select recipe, runtime, median(seconds) from cold_samples where workload = 'word-lm' group by recipe, runtime
-- column launch: number of the launch (a fresh process) that timed the call, starting at 1
-- column seconds: duration of the call in seconds
create view cold_samples as
select
    run_id, night, workload, recipe, runtime, setting, threads, batch_size, fingerprint,
    unnest(cold_launch) as launch,
    unnest(cold_s) as seconds,
    sequence_length
from internal.raw_blocks;

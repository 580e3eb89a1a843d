-- Raw timed blocks, one row each: the list columns of a measurement, unnested.
-- example: select night, median(seconds) from samples where workload = 'word-lm' and recipe = 'dynamic' group by night
-- column launch: launch (a fresh process) in which the block was timed, counted from 0
-- column round: round of the launch, counted from 0
-- column seconds: seconds per call, mean over the block
create view samples as
select
    run_id, night, workload, recipe, runtime, setting, threads, batch_size, fingerprint,
    unnest(block_launch) as launch,
    unnest(block_round) as round,
    unnest(block_s) as seconds,
    sequence_length
from internal.raw_blocks;

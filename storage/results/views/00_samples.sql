-- Raw timings of blocks, one row per block, from the list columns of the measurements table.
-- example: select night, median(seconds) from samples where workload = 'word-lm' and recipe = 'dynamic' group by night
-- column launch: number of the launch (a fresh process) that timed the block, starting at 1
-- column round: number of the round in the launch, starting at 1
-- column seconds: mean seconds per call in the block
create view samples as
select
    run_id, night, workload, recipe, runtime, setting, threads, batch_size, fingerprint,
    unnest(block_launch) as launch,
    unnest(block_round) as round,
    unnest(block_s) as seconds
from internal.raw_blocks;

-- Select the number for the calls, with warm or cold caches, that the gate uses.
create macro internal.deciding(caches, cold, warm) as case when caches = 'cold' then cold else warm end;

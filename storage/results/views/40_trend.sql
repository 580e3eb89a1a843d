-- Measurements of each candidate by night and machine, with intervals.
-- example: select night, speedup, speedup_low, speedup_high from trend where workload = 'resnet18' and runtime = 'eager'
-- column deciding_speedup: speed-up for the calls (warm or cold) that the gate uses
-- column deciding_speedup_low: lower bound of the 95% interval for deciding_speedup
-- column deciding_speedup_high: upper bound of the 95% interval for deciding_speedup
create view trend as
select
    workload, recipe, runtime, fingerprint, night, run_id, profile, measured_at, verdict,
    speedup, speedup_low, speedup_high,
    latency_s, latency_q25_s, latency_q75_s, baseline_latency_s,
    size_bytes, size_ratio,
    quality_metric, quality, quality_difference, quality_difference_low, quality_difference_high, higher_is_better,
    peak_rss_bytes, threads, batch_size, is_baseline,
    machine, environment,
    caches, cold_speedup, cold_speedup_low, cold_speedup_high, cold_latency_s, cold_baseline_latency_s,
    internal.deciding(caches, cold_speedup, speedup) as deciding_speedup,
    internal.deciding(caches, cold_speedup_low, speedup_low) as deciding_speedup_low,
    internal.deciding(caches, cold_speedup_high, speedup_high) as deciding_speedup_high,
    data_digest, checkpoint_digest, calibration_digest, recipe_digest
from measurements
where status = 'ok' and setting = 'primary';

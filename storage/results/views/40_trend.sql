-- Each candidate over the nights, per machine: what was measured, with its interval.
-- example: select night, speedup, speedup_low, speedup_high from trend where workload = 'resnet18' and runtime = 'eager'
create view trend as
select
    workload, recipe, runtime, fingerprint, night, run_id, profile, measured_at, verdict,
    speedup, speedup_low, speedup_high,
    latency_s, latency_q25_s, latency_q75_s, baseline_latency_s,
    size_bytes, size_ratio,
    quality_metric, quality, quality_difference, quality_difference_low, quality_difference_high, higher_is_better,
    peak_rss_bytes, threads, batch_size, is_baseline,
    coalesce(machine, fingerprint) as machine, environment,
    caches, cold_speedup, cold_speedup_low, cold_speedup_high, cold_latency_s, cold_baseline_latency_s
from candidates
where status = 'ok';

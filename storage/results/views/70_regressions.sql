-- Unacknowledged findings in the last run of each workload's latest night.
-- example: select workload, recipe, runtime, kind, metric, tonight, reference, change, since, changed from regressions
--
-- A reference restarts after the night on which a new bundle of the candidate was promoted. A reference also restarts
-- on a night whose finding was acknowledged. The night of a promotion is still compared with the old reference. The
-- reference of a speed-up needs several nights, so it restarts only if the promoted bundle has a new recipe. Otherwise,
-- a model that is trained every night would never be compared.
create macro internal.resets_on(asked) as table
select hash(workload, recipe, runtime) as candidate, metric, max(resets.night) as since
from (
    select workload, recipe, runtime, unnest(['size_bytes', 'quality_difference', 'quality']) as metric,
        min(night) as night, 1 as holds_after
    from promotions
    where decision = 'promote' and bundle_version is not null
    group by workload, recipe, runtime, bundle_version
    union all
    select workload, recipe, runtime, 'speedup', min(promotions.night), 1
    from promotions join measurements using (workload, recipe, runtime, run_id)
    where decision = 'promote' and bundle_version is not null and setting = 'primary'
    group by workload, recipe, runtime, recipe_digest
    union all
    select workload, recipe, runtime, metric, night, 0 from acknowledgements
) as resets
join newest_nights(asked) as newest using (workload)
where resets.night + holds_after <= newest.night
group by all;

-- Valid rows of the requested night and of the year before. Speed-ups over an earlier baseline are divided by the
-- speed-up of the last night's baseline in the same run, so that a new baseline does not begin a new history. With few launches, intervals are wide because of Student's
-- quantile, not because of scatter. The widths are therefore rescaled to five launches, for which
-- benchmarks.regressions tuned the alerts. Hashes replace names, because thousands of names are slow to transfer.
create macro internal.history_on(asked) as table
with rows as (
    select *,
        coalesce(internal.deciding(caches, cold_speedup, speedup), case when is_baseline then 1.0 end) as gain,
        ln(internal.deciding(caches, cold_speedup_high / cold_speedup_low, speedup_high / speedup_low))
            * case launches when 2 then 0.218 when 3 then 0.645 when 4 then 0.872 else 1 end as ratio_width,
        greatest(coalesce(ratio_width, 0.2) / (2 * 1.96), 0.001) as own_sd
    from measurements where status = 'ok' and setting in ('primary', 'current')
),
last_baselines as (
    select workload, profile, arg_max(baseline, (rows.night, measured_at)) as last_baseline
    from rows join newest_nights(asked) as newest using (workload)
    where rows.night <= newest.night group by workload, profile
),
bases as (
    select run_id, workload, gain as base, own_sd as base_sd, coalesce(quality_difference, 0) as base_difference
    from rows join last_baselines using (workload, profile)
    where setting = 'primary' and recipe || '/' || runtime = last_baseline
)
select rows.* exclude (gain, own_sd) replace (
        quality_difference - coalesce(base_difference, 0) as quality_difference,
        quality_difference_low - coalesce(base_difference, 0) as quality_difference_low,
        quality_difference_high - coalesce(base_difference, 0) as quality_difference_high
    ),
    newest.night as last,
    hash(workload, recipe, runtime) as candidate,
    case when base is null then baseline else last_baseline end as compared_with,
    hash(workload, recipe, runtime, machine, profile, compared_with, threads, batch_size, caches) as series,
    hash(compared_with, quality_metric) as quality_of,
    ln(gain / coalesce(base, 1.0)) as ratio,
    case when baseline = last_baseline or base is null then own_sd else sqrt(own_sd ** 2 + base_sd ** 2) end as ratio_sd
from rows
join newest_nights(asked) as newest using (workload)
join last_baselines using (workload, profile)
left join bases using (run_id, workload)
where rows.night <= newest.night and rows.night > newest.night - 365;

-- Speed-ups on one machine and in one setting, by night. A night's runs are weighted by precision, so that a later,
-- noisy run does not cancel the findings of an earlier run.
create macro internal.speeds_on(asked) as table
select series, list(night order by night) as nights, list(ratio order by night) as ratios,
    list(sd order by night) as sds
from (
    select series, rows.night, sum(ratio / ratio_sd ** 2) / sum(1 / ratio_sd ** 2) as ratio,
        1 / sqrt(sum(1 / ratio_sd ** 2)) as sd
    from internal.history_on(asked) as rows
    left join internal.resets_on(asked) as resets on resets.candidate = rows.candidate and metric = 'speedup'
    where setting = 'primary' and ratio is not null and rows.night >= coalesce(since, rows.night)
    group by series, rows.night
)
group by series;

-- Sizes and qualities on any machine; the last measurement of each night counts.
create macro internal.numbers_on(asked) as table
with rows as materialized (
    select candidate, quality_of, night, measured_at, run_id, size_bytes, quality, quality_difference,
        quality_difference_low, quality_difference_high,
        abs(coalesce(nullif(baseline_quality, 0), quality)) as scale
    from internal.history_on(asked) where setting = 'primary'
),
numbers as (
    select candidate, 'size_bytes' as metric, 0::ubigint as quality_of, night, measured_at, run_id,
        size_bytes::double as value, null::double as low, null::double as high, null::double as scale
    from rows
    union all
    select candidate, 'quality_difference', quality_of, night, measured_at, run_id,
        case when quality_difference_high is null then null else quality_difference end, quality_difference_low,
        quality_difference_high, scale
    from rows where quality_difference_low is not null
    union all
    select candidate, 'quality', quality_of, night, measured_at, run_id, quality, null, null, null from rows
)
select candidate, metric, quality_of, list(night order by night) as nights, list(value order by night) as values,
    arg_max_null(low, night) as low, arg_max_null(high, night) as high, arg_max_null(scale, night) as scale
from (
    select candidate, metric, quality_of, night,
        unnest(arg_max({value: value, low: low, high: high, scale: scale}, (measured_at, run_id)))
    from numbers left join internal.resets_on(asked) as resets using (candidate, metric)
    where value is not null and night >= coalesce(since, night)
    group by candidate, metric, quality_of, night
)
group by candidate, metric, quality_of;

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

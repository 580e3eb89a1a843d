-- A night compared with the last valid nights of the same host: alerts, and candidates that appeared or vanished.
-- example: select workload, recipe, runtime, kind, metric, tonight, reference, change from regressions
--
-- A metric alerts if its whole interval clears the reference by more than the least effect that matters, on this night
-- and on the one before, and also clears the scatter of the nights before. The reference is the median of the nights
-- before those two. docs/regressions.md shows what this finds and how often it is wrong.
create macro reference_nights() as 10;      -- valid nights that the reference is taken over
create macro least_nights() as 3;           -- with fewer of them there is no reference, hence no alert
create macro history_days() as 90;          -- older nights are no history
create macro known_nights() as 10;          -- nights before that a candidate is known from, so that it does not appear
create macro least_speed_effect() as 0.03;  -- least change of the latency ratio that matters, as a share
create macro least_size_effect() as 0.02;   -- the same for the size
create macro least_quality_effect() as 0.01;  -- the same for a quality without an interval; one with it need only clear

create macro regressions_on(asked) as table
with tonight as materialized (  -- each workload and that night (its newest night where none is asked for)
    from newest_nights(asked)
),
measured as materialized (  -- those workloads' primary rows up to tonight, of all runs and hosts
    select
        workload, rows.recipe, rows.runtime, rows.fingerprint, rows.profile, rows.night, tonight.night as last_night,
        rows.run_id, rows.measured_at, rows.attempt,
        rows.baseline, rows.threads, rows.batch_size, rows.status, rows.verdict, rows.is_baseline,
        rows.speedup, rows.speedup_low, rows.speedup_high, rows.size_bytes, rows.higher_is_better,
        rows.quality, rows.quality_difference, rows.quality_difference_low, rows.quality_difference_high
    from measurements as rows
    join tonight using (workload)
    where rows.setting = 'primary'
        and rows.night between (select min(night) - history_days() from tonight) and (select max(night) from tonight)
        and rows.night <= tonight.night
        and rows.night > tonight.night - history_days()
),
hosts as materialized (  -- what tonight's runs are compared on; a candidate that failed was on none
    select distinct workload, fingerprint, profile
    from measured
    where night = last_night and fingerprint is not null
),
-- One row per candidate and night on tonight's hosts, from the last of all runs: a run that was limited to some
-- recipes replaces only what it measured, tonight as on the nights before.
history as materialized (
    select measured.*
    from measured
    join hosts using (workload, fingerprint, profile)
    qualify row_number() over (
        partition by workload, recipe, runtime, fingerprint, profile, night
        order by measured_at desc, run_id desc, attempt desc
    ) = 1
),
points as (  -- metric, value, interval, direction (1: more is better), least effect as a share of the reference
    select workload, recipe, runtime, fingerprint, profile, baseline, threads, batch_size, night, last_night,
        'speedup' as metric, speedup as value, coalesce(speedup_low, speedup) as low,
        coalesce(speedup_high, speedup) as high, 1 as direction,
        least_speed_effect() as effect
    from history
    where status = 'ok' and verdict = 'valid' and speedup is not null and not coalesce(is_baseline, false)
    union all by name
    select workload, recipe, runtime, fingerprint, profile, baseline, threads, batch_size, night, last_night,
        'size_bytes' as metric, size_bytes::double as value, value as low, value as high, -1 as direction,
        least_size_effect() as effect
    from history
    where status = 'ok' and size_bytes is not null
    union all by name
    select workload, recipe, runtime, fingerprint, profile, baseline, threads, batch_size, night, last_night,
        'quality_difference' as metric, quality_difference as value, quality_difference_low as low,
        quality_difference_high as high, case when higher_is_better then 1 else -1 end as direction, 0.0 as effect
    from history
    where status = 'ok' and quality_difference_low is not null and quality_difference_high is not null
    union all by name
    select workload, recipe, runtime, fingerprint, profile, baseline, threads, batch_size, night, last_night,
        'quality' as metric, quality as value, value as low, value as high,
        case when higher_is_better then 1 else -1 end as direction, least_quality_effect() as effect
    from history
    where status = 'ok' and quality is not null
        and (quality_difference_low is null or quality_difference_high is null)
),
ranked as (
    select *, row_number() over (
        partition by workload, recipe, runtime, fingerprint, profile, metric, baseline, threads, batch_size
        order by night desc
    ) as age
    from points
    qualify age <= 2 + reference_nights()  -- older ones are not asked about below, and the medians are what costs
),
compared as (
    select
        workload, recipe, runtime, fingerprint, profile, metric,
        any_value(direction) as direction,
        max(last_night) as night,
        max(night) filter (age = 1) as measured_night,
        max(value) filter (age = 1) as value,
        max(low) filter (age = 1) as low,
        max(high) filter (age = 1) as high,
        max(low) filter (age = 2) as low_before,
        max(high) filter (age = 2) as high_before,
        median(value) filter (age between 3 and 2 + reference_nights()) as reference,
        count(*) filter (age between 3 and 2 + reference_nights()) as nights,
        quantile_cont(value, 0.1)
            filter (age between 3 and 2 + reference_nights()) as usual_low,
        quantile_cont(value, 0.9)
            filter (age between 3 and 2 + reference_nights()) as usual_high,
        max(effect) * abs(reference) as margin
    from ranked
    group by workload, recipe, runtime, fingerprint, profile, metric, baseline, threads, batch_size
),
alerts as (
    select *,
        greatest(high, high_before) < least(reference - margin, usual_low) as fell,
        least(low, low_before) > greatest(reference + margin, usual_high) as rose
    from compared
    where measured_night = night and nights >= least_nights()
),
runs_on_hosts as (  -- age 1 is tonight; a night on which nothing was measured on the host is not counted
    select *, dense_rank() over (partition by workload, fingerprint, profile order by night desc) as age
    from (
        select distinct workload, fingerprint, profile, night, run_id
        from measured
        join hosts using (workload, fingerprint, profile)
    )
    qualify age <= 1 + known_nights()
),
-- By run, not by the candidate's own row: one that failed has no fingerprint, but was there.
seen as (
    select workload, recipe, runtime, fingerprint, profile,
        bool_or(age = 1) as is_there, min(age) filter (age > 1) as last_age
    from (
        select workload, night, run_id, measured.recipe, measured.runtime, runs.fingerprint, runs.profile, runs.age
        from runs_on_hosts as runs
        join measured using (workload, night, run_id)
    )
    group by workload, recipe, runtime, fingerprint, profile
),
membership as (
    select *,
        count(last_age) over of_host > 0 as has_before,
        -- How far back the candidates reach that are there tonight: usually to the night before, but further where that
        -- night was asked for some recipes only, and must not make a candidate be forgotten that is gone since.
        coalesce(max(last_age) filter (is_there) over of_host, 2) as reach
    from seen
    window of_host as (partition by workload, fingerprint, profile)
),
appeared_or_vanished as (  -- distinct, because profiles share a candidate
    select distinct workload, recipe, runtime, fingerprint, tonight.night,
        case when is_there then 'appeared' else 'vanished' end as kind
    from membership
    join tonight using (workload)
    where case
        when is_there then has_before and last_age is null
        else last_age <= reach
            -- Another of the night's runs may have it, on whatever host.
            and (workload, recipe, runtime) not in (
                select (workload, recipe, runtime) from measured where measured.night = last_night
            )
        end
)
select
    workload, recipe, runtime, fingerprint,
    case
        when (fell and direction = 1) or (rose and direction = -1)
            then case metric when 'speedup' then 'slower' when 'size_bytes' then 'larger' else 'worse' end
        else 'improved'
    end as kind,
    metric,
    value as tonight, low as tonight_low, high as tonight_high, reference,
    case when reference <> 0 then value / reference - 1 end as change,
    nights, night
from alerts
where fell or rose
union all
select workload, recipe, runtime, fingerprint, kind, 'candidate' as metric, null, null, null, null, null, 0, night
from appeared_or_vanished
order by workload, recipe, runtime, metric;

create view regressions as select * from regressions_on(null::date);

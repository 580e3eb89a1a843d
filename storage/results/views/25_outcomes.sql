-- The outcome of each candidate on each workload's latest night, with the reason and the candidate's last measurement.
-- If no candidate matches the current bundle, an additional row describes the bundle. outcomes_on(date '2026-11-21')
-- returns the rows of one night, outcomes_on(null, nights := 30) returns the rows of the last 30 nights, and
-- outcomes_of(['<run id>', ...]) returns the rows of the listed runs.
-- example: select workload, candidate, became, why from outcomes where setting = 'primary' order by workload, rank
-- column candidate: name of the candidate, as recipe/runtime
-- column became: one of promote, stays (remains current), goes (no longer current), pass, hold, reject, failed, skipped or baseline
-- column why: the gate's reason, or the stage and error of a failure
-- column passes: whether the gate's decision is promote or pass
-- column rank: rank in the workload, 1 for the best candidate, with failed candidates last; NULL in the current bundle's additional row
-- column deciding_speedup: speed-up for the calls (warm or cold) that the gate uses; 1 for the baseline
-- column deciding_speedup_low: lower bound of the 95% interval for deciding_speedup
-- column deciding_speedup_high: upper bound of the 95% interval for deciding_speedup
-- column deciding_latency_s: median seconds per call, for the calls that the gate uses
-- column resolution: size of the noise, as the distance from 1 to the farther end of the A/A interval
-- column goodness: number by which the gate ranks candidates: deciding_speedup, size_ratio or capacity_ratio, depending on the objective
-- column unbeaten: whether the candidate is Pareto-optimal in size, deciding_speedup and quality
create macro outcomes_of(runs) as table
with measured as (
    select *,
        recipe || '/' || runtime as candidate,
        coalesce(
            internal.deciding(caches, cold_speedup, speedup), case when is_baseline and status = 'ok' then 1.0 end
        ) as deciding_speedup,
        internal.deciding(caches, cold_speedup_low, speedup_low) as deciding_speedup_low,
        internal.deciding(caches, cold_speedup_high, speedup_high) as deciding_speedup_high,
        internal.deciding(caches, cold_latency_s, latency_s) as deciding_latency_s,
        internal.deciding(
            caches, greatest(cold_aa_high - 1, 1 - cold_aa_low), greatest(aa_high - 1, 1 - aa_low)
        ) as resolution
    from measurements
    where run_id in (select unnest(runs)) and setting in ('primary', 'current')
),
newest as (
    select * from measured
    qualify row_number() over (
        partition by workload, night, candidate, setting order by measured_at desc, run_id desc
    ) = 1
),
standings as (
    select run_id, workload, any_value(current_stays) as bundle_stays, any_value(current_reason) as bundle_reason
    from promotions where run_id in (select unnest(runs)) group by run_id, workload
),
judged as (
    select
        newest.*, decided.decision, decided.objective, decided.rules, decided.current_stays,
        coalesce(decided.decision in ('promote', 'pass'), false) as passes,
        case
            when status in ('failed', 'skipped') then status
            when setting = 'current' then case when bundle_stays then 'stays' when not bundle_stays then 'goes' end
            when decided.decision = 'promote' and decided.current_stays then 'stays'
            when decided.decision is not null then decided.decision
            when is_baseline then 'baseline'
        end as became,
        case
            when status in ('failed', 'skipped') then concat_ws(': ', stage, coalesce(error, 'no reason was recorded'))
            when setting = 'current' then bundle_reason
            else coalesce(decided.reason, baseline_reason)
        end as why,
        case max(decided.objective) over of_night
            when 'smallest' then size_ratio else deciding_speedup
        end as goodness,
        case
            when setting = 'primary' and status = 'ok'
                then case when higher_is_better then quality else -quality end
        end as quality_goodness
    from newest
    left join promotions as decided
        on newest.setting = 'primary' and decided.run_id = newest.run_id and decided.workload = newest.workload
        and decided.recipe = newest.recipe and decided.runtime = newest.runtime
    left join standings on standings.run_id = newest.run_id and standings.workload = newest.workload
    window of_night as (partition by newest.workload, newest.night)
),
points as (
    select * from judged
    where size_bytes is not null and deciding_speedup is not null and quality_goodness is not null
)
select
    judged.* exclude (quality_goodness),
    case when setting = 'primary' then row_number() over (
        partition by workload, night, setting
        order by passes desc, coalesce(decision = 'promote', false) desc, status = 'ok' desc, goodness desc nulls last,
            recipe, runtime
    ) end as rank,
    size_bytes is not null and deciding_speedup is not null and quality_goodness is not null and not exists (
        select 1 from points as other
        where other.workload = judged.workload and other.night = judged.night
            and other.size_bytes <= judged.size_bytes
            and other.deciding_speedup >= judged.deciding_speedup
            and other.quality_goodness >= judged.quality_goodness
            and (other.size_bytes < judged.size_bytes or other.deciding_speedup > judged.deciding_speedup
                or other.quality_goodness > judged.quality_goodness)
    ) as unbeaten
from judged;

create macro outcomes_on(asked, nights := 1) as table
from outcomes_of((
    select list(distinct run_id)
    from measurements semi join newest_nights(asked, nights := nights) using (workload, night)
))
semi join newest_nights(asked, nights := nights) using (workload, night)
order by workload, night desc, setting, rank;

create view outcomes as from outcomes_on(null::date);

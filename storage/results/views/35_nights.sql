-- The outcome of each workload's latest night: whether a bundle was promoted or stays current, and why.
-- nights_on(date '2026-11-21') returns the rows of one night, and nights_on(null, nights := 30) returns the rows of the
-- last 30 nights.
-- example: select workload, night, outcome, candidate, version, why from nights
-- column outcome: one of "promoted", "kept", "held" (the gate could not decide), "nothing passed" or "not judged"
-- column candidate: candidate whose bundle is current after the night, as recipe/runtime; NULL if no bundle is current
-- column version: version of the bundle that is current after the night; NULL if no bundle is current or the version is unknown
-- column since: night on which the current bundle was first promoted
-- column replaced: version of the bundle that the promotion replaced; NULL if no bundle was replaced
-- column why: the gate's reason
-- column warning: reason why a person should check the decision; NULL if no check is needed
-- column run_id: id of the night's last run in which the gate made a decision
create macro nights_on(asked, nights := 1) as table
with decided as (
    select * from promotions
    semi join newest_nights(asked, nights := nights) using (workload, night)
    qualify run_id = last_value(run_id) over (
        partition by workload, night order by decided_at, run_id
        rows between unbounded preceding and unbounded following
    )
),
first as (
    select *, count(*) filter (decision = 'hold') over (partition by workload, night) as held
    from decided
    qualify row_number() over (
        partition by workload, night order by decision = 'promote' desc, recipe, runtime
    ) = 1
),
bundles as (
    select workload, bundle_version as version, min(night) as since,
        arg_min(recipe || '/' || runtime, night) as candidate, arg_min(artifact_digest, night) as artifact_digest
    from promotions where bundle_version is not null group by workload, bundle_version
),
came as (
    select *,
        case
            when run_id is null then 'not judged'
            when decision = 'promote' and not coalesce(current_stays, false) then 'promoted'
            when current_version is not null or decision = 'promote' then 'kept'
            when held > 0 then 'held'
            else 'nothing passed'
        end as outcome,
        case outcome
            when 'promoted' then bundle_version when 'kept' then coalesce(current_version, bundle_version)
        end as version
    from newest_nights(asked, nights := nights)
    left join first using (workload, night)
)
select
    came.workload, came.night, outcome,
    case outcome
        when 'promoted' then came.recipe || '/' || came.runtime when 'kept' then bundles.candidate
    end as candidate,
    came.version, case when outcome = 'promoted' then came.night else bundles.since end as since,
    case when outcome = 'promoted' then current_version end as replaced,
    case
        when outcome = 'not judged' then 'the gate did not run'
        when outcome = 'promoted' then reason
        when outcome = 'kept' then coalesce(current_reason, reason)
        when current_reason is not null
            then 'the current bundle could not be looked up: ' || current_reason
        when outcome = 'held' then 'no candidate could be promoted yet, and no bundle was current before'
        else 'no candidate passes the gate, and no bundle was current before'
    end as why,
    case
        when outcome = 'promoted' and bundle_version is null
            then 'No bundle was published: the run''s message says why.'
        when outcome = 'kept' and current_reason like 'it is unknown%'
            then 'It is unknown tonight whether the bundle is still good.'
        when outcome = 'kept' and (
            current_reason like 'no candidate passes that could replace it%'
            or exists (
                select 1 from decided as row
                where row.workload = came.workload and row.night = came.night and row.decision = 'reject'
                    and row.artifact_digest = bundles.artifact_digest
            )
        ) then 'The gate rejects it tonight, and nothing can replace it.'
        when outcome in ('held', 'nothing passed') and current_reason is not null then 'Check current.json.'
    end as warning,
    came.run_id
from came
left join bundles on bundles.workload = came.workload and bundles.version = came.version
order by came.workload, came.night desc;

create view nights as from nights_on(null::date);

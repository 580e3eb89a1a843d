-- Operations that each candidate executed on the latest night, with any warnings and the fraction of time spent in int8
-- operators. See docs/proof.md.
-- example: select workload, recipe, runtime, int8_time_share, instructions, doubts from executed where doubts <> ''
-- column instructions: instruction families with their percentages of the sampled time, in descending order
-- column dearest_float: most expensive float operator and, if known, the reason why the operator runs in float
-- column doubts: warnings as sentences, one per line; empty if there are no warnings
-- column unknown: reason why expected numbers are missing; NULL if no numbers are missing
create macro internal.instructions_in_words(shares) as
    array_to_string(list_transform(
        list_reverse_sort(list_transform(map_entries(shares), lambda entry: {share: entry.value, kind: entry.key})),
        lambda entry: printf('%s %d%%', entry.kind, round(100 * entry.share)::int)
    ), ', ');

create macro internal.dearest_float(operators) as
    printf('%s%s, %d%% of the time%s',
        operators ->> '$[0].type',
        case when operators ->> '$[0].name' <> '' then ' of ' || (operators ->> '$[0].name') else '' end,
        round(100 * (operators ->> '$[0].share')::double)::int,
        case when operators ->> '$[0].reason' <> '' then ': ' || (operators ->> '$[0].reason') else '' end
    );

create macro internal.lines_of(sentences) as
    array_to_string(from_json(coalesce(sentences, '[]'), '["VARCHAR"]'), chr(10));

create view executed as
select workload, recipe, runtime, night, int8_time_share,
    internal.instructions_in_words(instructions) as instructions,
    internal.dearest_float(float_operators) as dearest_float,
    saturation, batch_difference, batch_changed,
    internal.lines_of(doubts) as doubts,
    coalesce(
        unknown['int8_time_share'], unknown['instructions'], unknown['saturation'], unknown['batch_difference']
    ) as unknown
from latest
where setting = 'primary' and status = 'ok'
    and (int8_time_share is not null or instructions is not null or unknown['int8_time_share'] is not null)
order by workload, int8_time_share desc nulls last, recipe, runtime;

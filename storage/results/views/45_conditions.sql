-- The state of the host during the benchmark, one row per run and workload; NULL means that a value was not recorded.
-- example: select night, workload, load, waiting, stolen, troubles from conditions where troubles <> []
-- column load: load average over the last minute before the benchmark
-- column processors: number of processors on the host
-- column waiting: fraction of the benchmark's duration during which at least one task waited for a processor
-- column stolen: fraction of CPU time that other virtual machines took
-- column troubles: list that contains "waiting" or "stolen" if that fraction is high enough to distort the measurements
create macro internal.conditions_in(evidence) as
list_transform(
    from_json(coalesce(evidence, '[]'), '[{"workload":"VARCHAR","before":"VARCHAR","after":"VARCHAR"}]'),
    lambda each: {
        workload: each.workload,
        load: (each.before ->> '$.load_average[0]')::double,
        processors: (each.after ->> '$.machine.processors')::int,
        waiting: (
            (each.after ->> '$.pressure.cpu.some_total_us')::double
            - (each.before ->> '$.pressure.cpu.some_total_us')::double
        ) / 1e6 / greatest((each.after ->> '$.at_s')::double - (each.before ->> '$.at_s')::double, 1e-9),
        stolen: ((each.after ->> '$.steal_s')::double - (each.before ->> '$.steal_s')::double)
            / greatest((each.after ->> '$.at_s')::double - (each.before ->> '$.at_s')::double, 1e-9)
            / (each.after ->> '$.machine.processors')::int
    }
);

create macro internal.troubles(waiting, stolen) as
list_filter(
    [case when waiting > {WAITED_SHARE} then 'waiting' end, case when stolen > {STOLEN_SHARE} then 'stolen' end],
    lambda name: name is not null
);

create view conditions as
select run_id, night, found.*, internal.troubles(found.waiting, found.stolen) as troubles
from (select run_id, night, unnest(internal.conditions_in(evidence)) as found from runs)
order by night desc, run_id, found.workload;

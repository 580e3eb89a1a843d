-- The primary measurement of each candidate in each run.
-- example: select night, recipe, runtime, verdict from candidates where workload = 'word-lm' order by night desc
-- Select the number for the calls, with warm or cold caches, that the gate uses.
create macro internal.deciding(caches, cold, warm) as case when caches = 'cold' then cold else warm end;

create view candidates as
select * from measurements where setting = 'primary';

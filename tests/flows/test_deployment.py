from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DECLARED = yaml.safe_load((ROOT / "prefect.yaml").read_text())
DEPLOYMENTS = {one["name"]: one for one in DECLARED["deployments"]}


@pytest.mark.parametrize(
    ("name", "flow_name"),
    [("nightly", "nightly-quantization"), ("smoke", "nightly-quantization"), ("compact-results", "compact-results")],
)
def test_entrypoints_load_and_take_the_declared_parameters(name, flow_name, monkeypatch):
    from prefect.flows import load_flow_from_entrypoint

    monkeypatch.chdir(ROOT)
    flow = load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"])
    assert flow.name == flow_name
    flow.validate_parameters(DEPLOYMENTS[name]["parameters"])


def test_no_task_is_looked_up_in_prefects_cache():
    from prefect import Task
    from prefect.cache_policies import NO_CACHE

    from flows import nightly, steps

    tasks = [task for module in (steps, nightly) for task in vars(module).values() if isinstance(task, Task)]
    assert len(tasks) == 15
    assert all(task.cache_policy == NO_CACHE and task.persist_result is False for task in tasks)

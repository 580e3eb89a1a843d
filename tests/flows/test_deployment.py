from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DECLARED = yaml.safe_load((ROOT / "prefect.yaml").read_text())
DEPLOYMENTS = {one["name"]: one for one in DECLARED["deployments"]}


def _flow(name):
    from prefect.flows import load_flow_from_entrypoint

    return load_flow_from_entrypoint(DEPLOYMENTS[name]["entrypoint"])


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_three_deployments_are_declared():
    assert set(DEPLOYMENTS) == {"nightly", "smoke", "compact-results"}


@pytest.mark.parametrize(
    ("name", "flow_name"),
    [("nightly", "nightly-quantization"), ("smoke", "nightly-quantization"), ("compact-results", "compact-results")],
)
def test_entrypoints_load_and_take_the_declared_parameters(name, flow_name):
    flow = _flow(name)
    assert flow.name == flow_name
    flow.validate_parameters(DEPLOYMENTS[name]["parameters"])


@pytest.mark.parametrize(
    "request_",
    [{"profile": "slow"}, {"workload": ["word-lm"]}, {"night": "yesterday"}, {"workloads": "word-lm"}],
    ids=["unknown profile", "misspelt key", "no date", "no list"],
)
def test_wrong_parameters_are_refused(request_):
    from prefect.exceptions import ParameterTypeError

    with pytest.raises(ParameterTypeError):
        _flow("nightly").validate_parameters({"request": request_})


def test_the_form_that_the_ui_shows_describes_every_field():
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(_flow("nightly"))
    fields = schema.definitions["NightlyRequest"]["properties"]
    assert set(fields) == {"workloads", "recipes", "profile", "night", "store"}
    assert all(field["description"] and field["title"] for field in fields.values())


@pytest.mark.parametrize("name", ["nightly", "compact-results"])
def test_schedules_are_valid_cron_lines_with_a_time_zone_and_a_slug(name):
    from prefect.client.schemas.schedules import construct_schedule

    (schedule,) = DEPLOYMENTS[name]["schedules"]
    made = construct_schedule(cron=schedule["cron"], timezone=schedule["timezone"])
    assert made.timezone == schedule["timezone"]
    assert schedule["slug"]


def test_smoke_is_never_scheduled():
    assert DEPLOYMENTS["smoke"]["schedules"] == []


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_nothing_waits_for_a_slot_that_a_crash_can_keep(name):
    assert "concurrency_limit" not in DEPLOYMENTS[name]
    assert DEPLOYMENTS[name]["enforce_parameter_schema"] is True


def test_no_absolute_path_is_declared():
    def texts(value):
        if isinstance(value, dict):
            return [text for item in value.values() for text in texts(item)]
        if isinstance(value, list):
            return [text for item in value for text in texts(item)]
        return [value] if isinstance(value, str) else []

    assert not [text for text in texts(DECLARED) if text.startswith("/")]


def test_no_task_is_looked_up_in_prefects_cache():
    from prefect import Task
    from prefect.cache_policies import NO_CACHE

    from flows import nightly, steps

    tasks = [task for module in (steps, nightly) for task in vars(module).values() if isinstance(task, Task)]
    assert len(tasks) == 16
    assert all(task.cache_policy == NO_CACHE and task.persist_result is False for task in tasks)

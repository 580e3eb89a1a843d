import os

import click
import pytest
from click.testing import CliRunner

from flows.commands import store_option
from flows.settings import load_settings
from storage.errors import ConfigurationError
from storage.root import cache_folder


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("STORE", "PROFILE", "SIGNING_KEY", "WORKERS", "TASK_RUNNER"):
        monkeypatch.delenv(f"NIGHTQUANT_{name}", raising=False)


def test_flag_beats_variable_beats_file(tmp_path, monkeypatch):
    (tmp_path / "nightquant.toml").write_text('store = "from-file"\n')
    assert load_settings().store == "from-file"
    monkeypatch.setenv("NIGHTQUANT_STORE", "from-environment")
    assert load_settings(store=None).store == "from-environment"
    assert load_settings(store="from-flag").store == "from-flag"


def test_loading_settings_changes_nothing_and_a_commands_store_is_cached_where_they_say(tmp_path, monkeypatch):
    monkeypatch.setenv("NIGHTQUANT_CACHE", "")
    (tmp_path / "nightquant.toml").write_text(f'cache = "{tmp_path}/cached"\nstore = "s3://bucket"\n')
    before = dict(os.environ)
    settings = load_settings()
    assert cache_folder("s3://bucket").parent != tmp_path / "cached"
    assert CliRunner().invoke(shown_store, standalone_mode=False).return_value == settings.store
    assert cache_folder("s3://bucket").parent == tmp_path / "cached"
    assert dict(os.environ) == before


@click.command()
@store_option
def shown_store(store):
    return store


def test_a_deployments_task_runner_is_the_settings_at_the_start_of_its_run(monkeypatch):
    from flows.execution.context import CONFIGURED

    pytest.importorskip("prefect_dask", reason="the dask extra is not installed")
    for name, kind in {"threads": "ThreadPoolTaskRunner", "dask": "DaskTaskRunner"}.items():
        monkeypatch.setenv("NIGHTQUANT_TASK_RUNNER", name)
        assert type(CONFIGURED.duplicate()).__name__ == kind


def test_another_task_runner_is_named_by_its_import_path():
    from flows.execution.context import make_task_runner

    named = make_task_runner(load_settings(task_runner="prefect.task_runners:ProcessPoolTaskRunner"))
    assert type(named).__name__ == "ProcessPoolTaskRunner"
    for wrong in ("threadz", "prefect.task_runners:Missing", "two words"):
        with pytest.raises(ConfigurationError, match=f"{wrong}.* cannot be imported"):
            make_task_runner(load_settings(task_runner=wrong))


def test_an_unknown_key_and_a_wrong_value_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("NIGHTQUANT_WORKERS", "none")
    (tmp_path / "nightquant.toml").write_text('stoer = "typo"\n')
    with pytest.raises(ConfigurationError, match=r"(?s)stoer.*workers|workers.*stoer"):
        load_settings()


def test_secrets_are_not_shown(monkeypatch):
    monkeypatch.setenv("NIGHTQUANT_WEBHOOK_URL", "very-secret")
    settings = load_settings()
    assert "very-secret" not in repr(settings) + settings.model_dump_json()
    assert settings.webhook_url.get_secret_value() == "very-secret"

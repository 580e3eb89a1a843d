import pytest

from flows.settings import load_settings, source_of
from storage.errors import ConfigurationError
from storage.root import cache_folder


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("STORE", "PROFILE", "SIGNING_KEY", "WORKERS"):
        monkeypatch.delenv(f"NIGHTQUANT_{name}", raising=False)


def test_flag_beats_variable_beats_file(tmp_path, monkeypatch):
    (tmp_path / "nightquant.toml").write_text('store = "from-file"\n')
    assert load_settings().store == "from-file"
    assert source_of("store") == "nightquant.toml"
    monkeypatch.setenv("NIGHTQUANT_STORE", "from-environment")
    assert load_settings(store=None).store == "from-environment"
    assert source_of("store") == "environment, NIGHTQUANT_STORE"
    assert load_settings(store="from-flag").store == "from-flag"


def test_without_anything_the_store_lies_in_the_current_folder():
    assert load_settings().store == "nightquant-store"
    assert source_of("store") == "default"


def test_the_files_cache_is_where_remote_stores_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("NIGHTQUANT_CACHE", "")
    (tmp_path / "nightquant.toml").write_text(f'cache = "{tmp_path}/cached"\n')
    load_settings()
    assert cache_folder() == tmp_path / "cached"


def test_a_wrong_value_names_the_setting(monkeypatch):
    monkeypatch.setenv("NIGHTQUANT_WORKERS", "none")
    with pytest.raises(ConfigurationError, match="workers"):
        load_settings()


def test_an_unknown_key_of_the_file_is_refused(tmp_path):
    (tmp_path / "nightquant.toml").write_text('stoer = "typo"\n')
    with pytest.raises(ConfigurationError, match="stoer"):
        load_settings()


def test_a_file_that_is_not_toml_is_refused(tmp_path):
    (tmp_path / "nightquant.toml").write_text("store = \n")
    with pytest.raises(ConfigurationError, match=r"nightquant\.toml"):
        load_settings()


def test_secrets_are_not_shown(monkeypatch):
    monkeypatch.setenv("NIGHTQUANT_SIGNING_KEY", "very-secret")
    settings = load_settings()
    assert "very-secret" not in repr(settings)
    assert "very-secret" not in settings.model_dump_json()
    assert settings.signing_key.get_secret_value() == "very-secret"

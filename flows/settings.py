"""Settings: the command-line flag beats the environment (``NIGHTQUANT_…``) beats ``nightquant.toml``.

Loading them changes nothing but what is returned.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from storage.errors import ConfigurationError
from storage.results import Profile

if TYPE_CHECKING:
    from storage.trust import Signer

TaskRunnerName = Literal["threads", "dask", "ray"]


class Settings(BaseSettings):
    """The settings of every command on this machine."""

    model_config = SettingsConfigDict(
        env_prefix="NIGHTQUANT_", toml_file="nightquant.toml", extra="forbid", frozen=True, env_ignore_empty=True
    )

    store: str = Field(default="nightquant-store", description="the store's root: a folder or an s3:// URL")
    profile: Profile = Field(default="standard", description="how long benchmarks take")
    task_runner: TaskRunnerName = Field(default="threads", description="what fans the stages out")
    workers: PositiveInt = Field(
        default_factory=lambda: min(4, os.cpu_count() or 1), description="stages at work at once"
    )
    stage_timeout_s: PositiveFloat = Field(default=4 * 3600.0, description="a stage that works for longer is ended")
    retry_wait_s: NonNegativeFloat = Field(
        default=10.0, description="pause before a stage whose network or server failed is tried again; it grows"
    )
    server_startup_timeout_s: PositiveFloat = Field(default=90.0, description="patience with Prefect's own server")
    dask_address: str = Field(default="", description="scheduler to use; none: a local cluster")
    ray_address: str = Field(default="", description="cluster to use; none: a local one")
    fingerprint: str = Field(default="", description="benchmark only on hosts of this fingerprint; none: any")
    notification_block: str = Field(default="", description="Prefect notification block to call on a regression")
    webhook_url: SecretStr = Field(default=SecretStr(""), description="URL to post regressions to")
    signing_key: SecretStr = Field(
        default=SecretStr(""), description="Ed25519 key that signs bundles and what is current: PEM text or path"
    )
    signature_days: PositiveFloat = Field(default=30.0, description="days after which a signed current.json expires")
    cache: str = Field(default="", description="local cache of a remote store; none: the user's cache folder")

    def signer(self) -> Signer | None:
        """Return what signs, if a key is set; `ConfigurationError` if the key is not one."""
        made: Signer | None = resolve_name("storage.trust:Signer").of(
            self.signing_key.get_secret_value(), self.signature_days
        )
        return made

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(**flags: object) -> Settings:
    """Read the settings; a flag that is None was not given.

    Raises
    ------
    ConfigurationError
        A variable or a key of ``nightquant.toml`` is unknown or wrong.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        lines = [f"\n  {'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise ConfigurationError(
            f"A setting is wrong (flag, NIGHTQUANT_… variable or nightquant.toml):{''.join(lines)}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"nightquant.toml: not valid TOML: {error}.") from error


@contextmanager
def children_inherit(**variables: str | None) -> Iterator[None]:
    """Set environment variables for the processes that are started in the block; None takes one away from them."""
    before = {name: os.environ.pop(name, None) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def source_of(name: str) -> str:
    """Return where a setting's value comes from: ``environment``, ``nightquant.toml`` or ``default``."""
    variable = f"NIGHTQUANT_{name.upper()}"
    if os.environ.get(variable):
        return f"environment, {variable}"
    if name in TomlConfigSettingsSource(Settings)():
        return "nightquant.toml"
    return "default"

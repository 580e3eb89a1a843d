"""Settings: flags override environment variables (``NIGHTQUANT_…``), which override ``nightquant.toml``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from storage.errors import ConfigurationError
from storage.results import Profile

if TYPE_CHECKING:
    from storage.seal import Signer


class Settings(BaseSettings):
    """Settings that apply to all commands on this host."""

    model_config = SettingsConfigDict(
        env_prefix="NIGHTQUANT_", toml_file="nightquant.toml", extra="forbid", frozen=True, env_ignore_empty=True
    )

    store: str = Field(default="nightquant-store", description="root of the store: a folder or an s3:// URL")
    profile: Profile = Field(
        default="standard",
        description="time limit for each workload's benchmarks: 1 min (quick), 5 min (standard) or 15 min (full)",
    )
    task_runner: str = Field(
        default="threads",
        description="task runner that executes stages in parallel: `threads`, `dask`, or the import path of another "
        "Prefect task runner (`module:Class`)",
    )
    workers: PositiveInt = Field(
        default_factory=lambda: min(4, os.cpu_count() or 1), description="maximum number of stages that run at once"
    )
    stage_timeout_s: PositiveFloat = Field(default=4 * 3600.0, description="maximum duration of a stage, in seconds")
    retry_wait_s: NonNegativeFloat = Field(
        default=10.0,
        description="pause before the first retry after a network or server failure, in seconds; "
        "the pause grows with each retry",
    )
    dask_address: str = Field(
        default="", description="address of the Dask scheduler; if empty, the run starts a local cluster"
    )
    fingerprint: str = Field(
        default="",
        description="fingerprint of the hosts that may run benchmarks; if empty, any host may run benchmarks",
    )
    notification_block: str = Field(
        default="", description="name of the Prefect notification block that receives alerts"
    )
    webhook_url: SecretStr = Field(default=SecretStr(""), description="URL to which nightquant posts alerts")
    signing_key: str = Field(
        default="", description="path of the P-256 private key (a PEM file) that signs bundles and current.json"
    )
    signature_days: PositiveFloat = Field(
        default=30.0, description="number of days after which a signed current.json expires"
    )
    cache: str = Field(
        default="",
        description="folder for cached files of a remote store; if empty, nightquant uses the folder `nightquant` in "
        "`XDG_CACHE_HOME`",
    )

    def signer(self) -> Signer | None:
        """Return the signer, or None if no key is set; raise `ConfigurationError` if the key is not a P-256 key."""
        from storage.seal import Signer

        return Signer.of(self.signing_key, self.signature_days)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give flags precedence over environment variables, and environment variables over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(**flags: object) -> Settings:
    """Read the settings; flags that are None are ignored."""
    overrides = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        lines = [f"\n  {'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise ConfigurationError(
            "Some settings are invalid. Correct these flags, NIGHTQUANT_… variables or nightquant.toml keys:"
            f"{''.join(lines)}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"nightquant.toml is not valid TOML: {error}.", hint="Correct the file.") from error


@contextmanager
def without_signing_key() -> Iterator[None]:
    """Remove the signing key from the environment of the processes that the block starts."""
    key = os.environ.pop("NIGHTQUANT_SIGNING_KEY", None)
    try:
        yield
    finally:
        if key is not None:
            os.environ["NIGHTQUANT_SIGNING_KEY"] = key

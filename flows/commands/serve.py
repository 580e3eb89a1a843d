"""``nightquant serve``: schedule and run the nights from this one process."""

from __future__ import annotations

import click

from flows.commands import profile_option, store_option
from flows.execution.server import check_reachable, configured_api
from flows.request import NightlyRequest
from flows.settings import load_settings
from storage.errors import ConfigurationError
from storage.root import check_writable


@click.command()
@store_option
@profile_option
@click.option("--cron", default="0 2 * * *", show_default=True, help="When, in cron's notation.")
@click.option("--timezone", default="Etc/UTC", show_default=True, help="The time zone that --cron counts in.")
def command(store: str, profile: str | None, cron: str, timezone: str) -> None:
    """Serve the deployment nightly-quantization/served from this process, until it is ended.

    The one-process alternative to a work pool and a worker. It needs a running Prefect server (PREFECT_API_URL), for
    the schedule must live longer than this command.

    \b
    Example:
      prefect server start &
      PREFECT_API_URL=http://127.0.0.1:4200/api nightquant serve --cron "30 1 * * *" --timezone Europe/Berlin
    """
    if not configured_api():
        raise ConfigurationError(
            "No Prefect server is configured.",
            hint="Start one (prefect server start) and set PREFECT_API_URL=http://127.0.0.1:4200/api.",
        )
    check_reachable()
    check_writable(store)
    from prefect.schedules import Cron

    from flows.execution.task_runners import refuse_namesakes
    from flows.nightly import nightly_quantization

    refuse_namesakes("Prefect")
    request = NightlyRequest.model_validate({"store": store, "profile": load_settings(profile=profile).profile})
    try:
        schedule = Cron(cron, timezone=timezone)
    except ValueError as error:
        raise ConfigurationError(f"The schedule {cron!r} in {timezone!r} is wrong: {error}.") from error
    nightly_quantization.serve(
        name="served",
        schedule=schedule,
        parameters={"request": request.model_dump(mode="json", exclude_none=True)},
        tags=["nightquant", "nightly"],
    )

"""Ending the flow runs of nights that died: Prefect would call them running for ever."""

from __future__ import annotations

import logging
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Crashed

from storage.holder import HeldStore, Holder


def end_dead_runs(held: HeldStore, flow_run_id: str) -> None:
    """Set the flow runs of nights that died holding the store to Crashed, unless they reached a final state.

    Only those are looked at that the store's own record names. One that this server does not know is kept for another
    server, and so is one that could not be set. `flow_run_id` is the run that asks: after a retry it may be recorded as
    dead itself.
    """
    with get_client(sync_client=True) as client:
        for dead in held.dead:
            if dead.flow_run_id in ("", flow_run_id):
                held.forget(dead)
                continue
            try:
                _end(client, dead)
            except ObjectNotFound:
                continue
            except (httpx.HTTPError, PrefectException) as error:
                logging.getLogger(__name__).warning("the dead %s could not be ended: %s", dead.describe(), error)
                continue
            held.forget(dead)


def _end(client: SyncPrefectClient, dead: Holder) -> None:
    run = client.read_flow_run(UUID(dead.flow_run_id))
    if run.state is not None and not run.state.is_final():
        crashed: State[None] = Crashed(message=f"The night died: {dead.describe()} holds the store no more.")
        client.set_flow_run_state(run.id, crashed, force=True)

"""Prefect worker and Prefect runner that stop their runs in order."""

# When Prefect's process worker or runner is stopped, asyncio kills the processes of its runs with SIGKILL, so that they
# cannot record their results. These classes send SIGTERM, and wait for the run's process to end. Prefect finds the
# worker through the entry point ``prefect.collections`` in ``pyproject.toml``.

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import anyio
from anyio.abc import TaskStatus
from prefect.runner import Runner
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.deployments.runner import RunnerDeployment


class NightWorker(ProcessWorker):
    """Worker that runs each flow run in a process, and lets the process end before the worker ends."""

    type = "nightquant"
    _display_name = "nightquant"
    _description = "Run nightquant's nights as processes, and stop them in order when the worker is stopped."

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        """Run a flow run in a process; if the worker is stopped, stop the process with SIGTERM and wait for it."""
        started = _Started(task_status or anyio.TASK_STATUS_IGNORED)
        # A task of asyncio's own is not cancelled with the worker's tasks.
        running = asyncio.create_task(super().run(flow_run, configuration, started))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not started.pid:
                running.cancel()
            elif not running.done():
                with suppress(ProcessLookupError):
                    os.kill(started.pid, signal.SIGTERM)
            with anyio.CancelScope(shield=True):
                await asyncio.wait([running])
            raise


class _Started(TaskStatus[int]):
    """Task status that keeps the id of the run's process."""

    def __init__(self, status: TaskStatus[int]) -> None:
        self._status = status
        self.pid = 0

    def started(self, value: int = 0) -> None:
        self.pid = value
        self._status.started(value)


class NightRunner(Runner):
    """Runner that lets the processes of its runs end before it ends."""

    async def __aenter__(self) -> Self:
        self._serving = asyncio.current_task()
        return await super().__aenter__()

    def handle_sigterm(self, *_: object, **__: object) -> None:
        """Stop serving, like Control-C; Prefect's handler would cancel all tasks at once, and so kill the runs."""
        if self._loop is not None and self._serving is not None:
            self._loop.call_soon_threadsafe(self._serving.cancel)

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop the processes of all runs with SIGTERM and wait for them, then stop the runner."""
        runs = self._process_manager
        for process in filter(None, map(runs.get, runs.flow_run_ids())):
            with suppress(ProcessLookupError):
                process.graceful_kill()
        with anyio.CancelScope(shield=True):
            while runs.flow_run_ids():
                await anyio.sleep(0.1)
        await super().__aexit__(*exc_info)


def serve_in_order(deployment: RunnerDeployment) -> None:
    """Serve a deployment from this process until Control-C or SIGTERM, and then stop its runs in order."""
    # Prefect would pause the schedule. The server reports the nights of an active schedule as late if nobody runs them.
    runner = NightRunner(pause_on_shutdown=False)
    runner.add_deployment(deployment)
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(runner.start())

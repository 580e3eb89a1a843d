"""Prefect worker that stops its runs in order.

When Prefect's process worker is stopped, it cancels its tasks. If a task is cancelled, asyncio kills the task's
process with SIGKILL. The run then cannot record its results, and its state stays ``Running``. `NightWorker` sends
SIGTERM instead, and waits for the run's process to end.

Prefect finds the worker through the entry point ``prefect.collections`` in ``pyproject.toml``. The worker's type is the
type of the work pool.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun


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
        """Run a flow run in a process; when the worker is stopped, stop the process with SIGTERM and wait for it."""
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
        """Keep the id of the process, and pass it on."""
        self.pid = value
        self._status.started(value)

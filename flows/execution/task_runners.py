"""What fans the stages out: threads of this process, other processes, a Dask cluster or Ray; and where they benchmark.

Benchmarks run only on hosts of the wanted fingerprint, one at a time on each. Threads and processes have one host, this
one. A Dask cluster or Ray is asked for its hosts, and benchmarks are pinned to one worker of every host that fits, so
that nothing has to be declared when a worker is started. The host's lock (`storage.locks`) holds besides, also against
other runs.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from prefect.context import FlowRunContext
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from flows.execution.workers import end_with_parent
from flows.settings import Settings, children_inherit, load_settings
from storage.errors import ConfigurationError, MeasurementError
from tasks.machine import fingerprint

if TYPE_CHECKING:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

# A task that waits for the one before it holds a thread; the number of workers limits how many stages run at once.
_WAITING_THREADS = 256
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

AnyTaskRunner = TaskRunner[Any]  # its futures hold whatever the stages return
Pin = Callable[[], AbstractContextManager[None]]  # what is submitted in its block runs in one place
Spot = TypeVar("Spot")


@dataclass(frozen=True)
class Host:
    """A host: ``identity`` is the same for all processes on it, whatever container they are in."""

    name: str
    identity: str
    fingerprint: str


class _ConfiguredTaskRunner(ThreadPoolTaskRunner[object]):
    """Stands for the task runner of the settings, which are read when a run starts and not when the flow is imported.

    Prefect starts each run with a duplicate of its flow's task runner.
    """

    def duplicate(self) -> AnyTaskRunner:  # type: ignore[override]  # Prefect itself asks for a context manager only
        """Make the task runner that the settings name."""
        return make_task_runner(load_settings())


CONFIGURED: AnyTaskRunner = _ConfiguredTaskRunner()


def make_task_runner(settings: Settings) -> AnyTaskRunner:
    """Make the task runner that the settings name.

    Raises
    ------
    ConfigurationError
        The extra that the runner needs is not installed.
    """
    if settings.task_runner == "threads":
        return ThreadPoolTaskRunner(max_workers=_WAITING_THREADS)
    if settings.task_runner == "processes":
        return _EndedProcesses(settings.workers, initializer=_begin_process, initargs=(_inherited(settings),))
    try:
        return _dask(settings) if settings.task_runner == "dask" else _ray(settings)
    except ImportError as error:
        raise ConfigurationError(
            f"The task runner {settings.task_runner} is not installed.",
            hint=f"Install it: pip install 'nightquant[{settings.task_runner}]'.",
        ) from error


def refuse_namesakes(who: str) -> None:
    """Refuse to start processes that put the working folder first on Python's path if modules there hide ours.

    The refusal is a `ConfigurationError`.
    """
    ours = Path(__file__).resolve().parents[2]
    for path in (Path(name) for package in ("flows", "tasks", "storage") for name in (f"{package}.py", package)):
        if path.resolve().parent != ours and (path.is_file() or (path / "__init__.py").is_file()):
            raise ConfigurationError(
                f"{who} puts the working folder first on Python's path: {path.absolute()} hides a part of nightquant.",
                hint="Run from another folder, or rename it.",
            )


def this_host() -> Host:
    """Describe the host that this process runs on."""
    identity = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.is_file() else platform.node()
    return Host(platform.node(), identity, fingerprint())


def require_fingerprint(wanted: str) -> None:
    """Refuse, with a `MeasurementError`, to benchmark on a host of another fingerprint than is wanted; "" is any."""
    if wanted:
        choose([(this_host(), None)], wanted)


def place_benchmarks(settings: Settings) -> tuple[Pin, ...]:
    """Find the hosts of this flow run's cluster that benchmarks may run on; return a pin for each.

    There is none for threads and processes: they have one host, and the task itself refuses one that does not fit.

    Raises
    ------
    MeasurementError
        No host of the cluster has the wanted fingerprint.
    """
    run = FlowRunContext.get()
    if run is None or settings.task_runner not in ("dask", "ray"):
        return ()
    hosts = _dask_workers(run.task_runner) if settings.task_runner == "dask" else _ray_nodes()
    return choose(hosts, settings.fingerprint)


def choose(hosts: Iterable[tuple[Host, Spot]], wanted: str) -> tuple[Spot, ...]:
    """Choose one spot of each host that has the wanted fingerprint ("": any); `MeasurementError` if there is none."""
    hosts = list(hosts)
    if fitting := {host.identity: spot for host, spot in hosts if wanted in ("", host.fingerprint)}:
        return tuple(fitting.values())
    found = ", ".join(sorted({f"{host.name} has {host.fingerprint}" for host, _ in hosts})) or "there is no host"
    raise MeasurementError(
        f"Benchmarks are wanted on hosts of fingerprint {wanted or '(any)'}; {found}.",
        hint="Run a worker on such a host, or change NIGHTQUANT_FINGERPRINT (empty: any host).",
    )


def _inherited(settings: Settings) -> dict[str, str]:
    """Return what local worker processes must be told about the settings: a flag is in nobody's environment."""
    return {"NIGHTQUANT_WORKERS": str(settings.workers)}


def _begin_process(environment: dict[str, str]) -> None:
    os.environ.update(environment)
    end_with_parent()


class _EndedProcesses(ProcessPoolTaskRunner):
    """Ends its processes when the run is stopped; Prefect's waits for the stages that they are running."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        super().__exit__(kind, error, traceback)


def _dask(settings: Settings) -> AnyTaskRunner:
    from dask import config
    from prefect_dask.task_runners import DaskTaskRunner

    if settings.dask_address:
        return DaskTaskRunner(address=settings.dask_address)
    # A benchmark is pinned to its host's worker; without a limit it would wait for ever for one that is gone.
    config.set({"distributed.scheduler.no-workers-timeout": "5 minutes"})
    local = {"n_workers": settings.workers, "threads_per_worker": 1, "processes": True, "env": _inherited(settings)}
    # By default, its web server would listen on all interfaces, or warn that the usual port is taken.
    return DaskTaskRunner(cluster_kwargs=local | {"dashboard_address": "127.0.0.1:0"})


def _dask_workers(task_runner: AnyTaskRunner) -> list[tuple[Host, Pin]]:
    found: dict[str, Host] = task_runner.client.run(this_host)  # type: ignore[attr-defined]
    return [(host, partial(_on_dask_worker, address)) for address, host in found.items()]


@contextmanager
def _on_dask_worker(address: str) -> Iterator[None]:
    from dask.base import annotate

    # "Other workers allowed" would let idle ones steal it, whatever their host.
    with annotate(workers=[address], allow_other_workers=False):
        yield


def _ray(settings: Settings) -> AnyTaskRunner:
    refuse_namesakes("Ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from prefect_ray.task_runners import RayTaskRunner

    local = {
        "num_cpus": settings.workers,
        "include_dashboard": False,
        "logging_level": logging.WARNING,
        "log_to_driver": False,  # the terminal is the reporter's; Prefect's run log has what the stages said
    }

    class InterruptibleRay(RayTaskRunner):  # type: ignore[misc]  # its module has no types
        """Leaves SIGTERM to Prefect: Ray's own handler aborts the process."""

        def __enter__(self) -> Self:
            handler = signal.getsignal(signal.SIGTERM)
            with children_inherit(NIGHTQUANT_SIGNING_KEY=None, **_inherited(settings)):
                super().__enter__()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
            return self

    runner: AnyTaskRunner = InterruptibleRay(
        address=settings.ray_address or None, init_kwargs=None if settings.ray_address else local
    )
    return runner


def _ray_nodes() -> list[tuple[Host, Pin]]:
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    probe = ray.remote(this_host)
    asked = [probe.options(num_cpus=0, scheduling_strategy=_only(node["NodeID"])).remote() for node in alive]
    pins = [partial(_on_ray_node, node["NodeID"], node["Resources"].get("CPU", 0.0)) for node in alive]
    return list(zip(ray.get(asked), pins, strict=True))


@contextmanager
def _on_ray_node(node: str, processors: float) -> Iterator[None]:
    from prefect_ray.context import remote_options

    # All of the node's processors: Ray then starts nothing beside it.
    with remote_options(num_cpus=processors, scheduling_strategy=_only(node)):
        yield


def _only(node: str) -> NodeAffinitySchedulingStrategy:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)

"""Where benchmarks run: only on hosts of the wanted fingerprint, and on each of them one at a time.

Threads and processes have one host, their own. A Dask cluster or Ray is asked for the hosts that it has; benchmarks
are then pinned to one worker of every host that fits, so that none runs beside another and nothing has to be declared
when a worker is started. The host's lock (`storage.locks`) holds besides, also against other runs.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.settings import Settings
from storage.errors import MeasurementError
from tasks.machine import fingerprint

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Host:
    """A host: ``identity`` is the same for all processes on it, whatever container they are in."""

    name: str
    identity: str
    fingerprint: str


@dataclass(frozen=True)
class Placement:
    """Where submissions may go: one spot per host; what is submitted in ``enter(spot)`` is carried out there."""

    spots: tuple[Any, ...] = ("",)
    enter: Callable[[Any], AbstractContextManager[None]] = nullcontext
    ahead: bool = False  # whether a cluster keeps submissions until their spot is free

    def at(self, index: int) -> AbstractContextManager[None]:
        """The `index`-th submission's spot, in turns."""
        return self.enter(self.spots[index % len(self.spots)])


def this_host() -> Host:
    """The host that this process runs on."""
    identity = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.is_file() else platform.node()
    return Host(platform.node(), identity, fingerprint())


def require_fingerprint(wanted: str) -> None:
    """Refuse to benchmark on another kind of host than the one that is wanted; "" is any.

    Raises
    ------
    MeasurementError
        This host's fingerprint is another.
    """
    if wanted and (host := this_host()).fingerprint != wanted:
        raise _refusal(wanted, [host])


def place_benchmarks(settings: Settings, task_runner: object) -> Placement:
    """Find the hosts that benchmarks may run on, with the flow run's started `task_runner`.

    Raises
    ------
    MeasurementError
        No host of the cluster has the wanted fingerprint.
    """
    if settings.task_runner not in _CLUSTERS:
        return Placement()  # the task itself refuses a host that does not fit
    survey, enter = _CLUSTERS[settings.task_runner]
    hosts = survey(task_runner)
    return Placement(choose(hosts, settings.fingerprint), enter, ahead=True)


def choose(hosts: Mapping[Any, Host], wanted: str) -> tuple[Any, ...]:
    """One spot of each host that has the wanted fingerprint ("": any).

    Raises
    ------
    MeasurementError
        There is none.
    """
    fitting = {host.identity: spot for spot, host in hosts.items() if wanted in ("", host.fingerprint)}
    if not fitting:
        raise _refusal(wanted, list(hosts.values()))
    return tuple(fitting.values())


def _refusal(wanted: str, hosts: list[Host]) -> MeasurementError:
    found = ", ".join(sorted({f"{host.name} has {host.fingerprint}" for host in hosts})) or "there is no host"
    return MeasurementError(
        f"Benchmarks are wanted on hosts of fingerprint {wanted or '(any)'}; {found}.",
        hint="Run a worker on such a host, or change NIGHTQUANT_FINGERPRINT (empty: any host).",
    )


def _dask_workers(task_runner: Any) -> Mapping[str, Host]:
    found: Mapping[str, Host] = task_runner.client.run(this_host)
    return found


@contextmanager
def _on_dask_worker(address: str) -> Iterator[None]:
    from dask.base import annotate

    # "Other workers allowed" would let idle ones steal it, whatever their host.
    with annotate(workers=[address], allow_other_workers=False):
        yield


def _ray_nodes(task_runner: object) -> Mapping[tuple[str, float], Host]:
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    nodes = [(node["NodeID"], node["Resources"].get("CPU", 0.0)) for node in alive]
    probe = ray.remote(this_host)
    asked = [probe.options(num_cpus=0, scheduling_strategy=_only(node)).remote() for node, _ in nodes]
    return dict(zip(nodes, ray.get(asked), strict=True))


@contextmanager
def _on_ray_node(spot: tuple[str, float]) -> Iterator[None]:
    from prefect_ray.context import remote_options

    node, processors = spot
    # All of the node's processors: Ray then starts nothing beside it.
    with remote_options(num_cpus=processors, scheduling_strategy=_only(node)):
        yield


def _only(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


_Survey = Callable[[Any], Mapping[Any, Host]]
_CLUSTERS: dict[str, tuple[_Survey, Callable[[Any], AbstractContextManager[None]]]] = {
    "dask": (_dask_workers, _on_dask_worker),
    "ray": (_ray_nodes, _on_ray_node),
}

"""A discrete-event simulation of a night on many hosts: who waits for whom, and for how long.

Resources take first come, first served. A task run costs the flow's process, then Prefect's server, then a worker (or,
for a benchmark, the whole host), then the store, then the server again, as `flows.steps` does it. Simplified on
purpose: the store takes one write at a time (the worst case), hosts are alike, and nothing fails.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

Process = Generator["tuple[Resource, float] | list[Process]", None, None]


@dataclass
class Resource:
    """`capacity` places; ``busy_s`` adds up the seconds in which they were taken."""

    name: str
    capacity: int
    busy_s: float = 0.0
    taken: int = 0
    waiting: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)


class Simulation:
    """Runs processes: each yields a resource and the seconds that it holds it, or processes to wait for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def run(self, process: Process) -> float:
        """Run to the end; give the time when `process` ended."""
        self._advance(process, lambda: None)
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        return self.now

    def _advance(self, process: Process, ended: Callable[[], None]) -> None:
        try:
            step = next(process)
        except StopIteration:
            ended()
            return
        if isinstance(step, tuple):
            self._use(*step, lambda: self._advance(process, ended))
            return
        left = len(step)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._advance(process, ended)

        for child in step:
            self._advance(child, one_less)

    def _use(self, resource: Resource, seconds: float, then: Callable[[], None]) -> None:
        resource.waiting.append((seconds, then))
        self._serve(resource)

    def _serve(self, resource: Resource) -> None:
        while resource.waiting and resource.taken < resource.capacity:
            seconds, then = resource.waiting.popleft()
            resource.taken += 1
            resource.busy_s += seconds
            heapq.heappush(self._events, (self.now + seconds, next(self._order), self._release(resource, then)))

    def _release(self, resource: Resource, then: Callable[[], None]) -> Callable[[], None]:
        def release() -> None:
            resource.taken -= 1
            self._serve(resource)
            then()

        return release


@dataclass(frozen=True)
class Costs:
    """Seconds: samples of each stage, and what Prefect's client and server and the store take each time."""

    stages: dict[str, Sequence[float]]
    client_s: float
    server_s: float
    store_s: float


@dataclass(frozen=True)
class Setting:
    """The hosts, and a night of ``candidates`` in workloads of `recipes` × `runtimes`."""

    name: str
    hosts: int
    benchmark_hosts: int
    workers_per_host: int = 2
    candidates: int = 1000
    recipes: int = 2
    runtimes: int = 2
    barrier: bool = True  # no benchmark before every workload is evaluated


@dataclass(frozen=True)
class Outcome:
    """Seconds until everything was evaluated and until the end, and how busy each resource was until the end."""

    setting: Setting
    evaluated_s: float
    end_s: float
    busy: dict[str, float]  # share of capacity × end_s

    @property
    def bottleneck(self) -> str:
        """The busiest resource."""
        return max(self.busy, key=lambda name: self.busy[name])


def simulate(setting: Setting, costs: Costs, seed: int = 0) -> Outcome:
    """Run one night."""
    simulation, chance = Simulation(), random.Random(seed)
    client, server, store = Resource("flow's process", 1), Resource("Prefect's server", 1), Resource("store", 1)
    workers = Resource("workers", setting.hosts * setting.workers_per_host)
    hosts = Resource("benchmark hosts", setting.benchmark_hosts)
    evaluated = 0.0

    def stage(name: str, place: Resource) -> Process:
        yield client, costs.client_s
        yield server, costs.server_s / 2
        yield place, chance.choice(costs.stages[name])
        yield store, costs.store_s
        yield server, costs.server_s / 2

    def candidate() -> Process:
        yield from stage("build", workers)
        yield from stage("evaluate", workers)

    def workload() -> Process:
        nonlocal evaluated
        yield from stage("prepare data set", workers)
        yield from stage("obtain checkpoint", workers)
        yield [candidate() for _ in range(setting.recipes * setting.runtimes)]
        yield from stage("compare with the baseline", workers)
        evaluated = max(evaluated, simulation.now)
        if not setting.barrier:
            yield from stage("benchmark", hosts)

    def night() -> Process:
        count = setting.candidates // (setting.recipes * setting.runtimes)
        yield [workload() for _ in range(count)]
        if setting.barrier:
            yield [stage("benchmark", hosts) for _ in range(count)]

    end = simulation.run(night())
    resources = (client, server, store, workers, hosts)
    return Outcome(setting, evaluated, end, {each.name: each.busy_s / (each.capacity * end) for each in resources})

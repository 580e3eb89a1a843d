"""The host's constant properties, environment and current state. This module does not import torch."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from storage.digest import canonical_json, digest_of
from storage.errors import UnavailableError
from tasks.values.refs import Frozen
from tasks.workload.recipe import RUNTIMES
from tasks.workload.workload import Workload

LIBRARIES = ("torch", "torchvision", "numpy", "safetensors")  # they affect a model's outputs and speed
_ISA = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip
_VNNI = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})
# Prefixes of environment variables that select the kernels of torch, oneDNN, MKL and nightquant.
_SELECTING = ("ATEN_", "DNNL_", "MKL_", "NIGHTQUANT_ISA", "ONEDNN_")
# Prefixes of environment variables that select or set the allocator.
_ALLOCATING = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_")


class Machine(Frozen):
    """The hardware and the environment; ``product`` is the firmware's name for the host, such as an instance type."""

    cpu: str
    architecture: str
    isa: tuple[str, ...]
    processors: int
    physical_cores: int
    memory_bytes: int
    system: str
    python: str
    libraries: dict[str, str]
    product: str

    @property
    def digest(self) -> str:
        """SHA-256 of hardware properties; speed ratios are comparable only between machines with equal digests."""
        return digest_of(self._rounded({"system", "python", "libraries"}))

    @property
    def environment(self) -> str:
        """Versions of the kernel, Python and libraries, as canonical JSON."""
        return canonical_json({"kernel": self.system, "python": self.python, **self.libraries})

    @property
    def fingerprint(self) -> str:
        """SHA-256 of hardware properties and of the versions of the kernel, Python and `LIBRARIES`."""
        libraries = {name: version for name, version in self.libraries.items() if name in LIBRARIES}
        return digest_of(self._rounded({"product"}) | {"libraries": libraries})

    def _rounded(self, without: set[str]) -> dict[str, object]:
        # Round the memory size, because the reported size changes by a few pages between reboots.
        return self.model_dump(mode="json", exclude=without) | {"memory_bytes": round(self.memory_bytes / 2**30)}

    @property
    def has_vnni(self) -> bool:
        """Whether the processor has instructions that multiply int8 values (VNNI, AMX, or Arm's dot product)."""
        return not _VNNI.isdisjoint(self.isa)


class Pressure(Frozen):
    """Time during which tasks waited for a resource: as a percentage of the last 10 s, and in total since boot (µs)."""

    some_avg10: float
    some_total_us: int


class Evidence(Frozen):
    """The host's state at ``at_s`` (Unix time); ``steal_s`` is the time that other guests have taken since boot."""

    at_s: float
    host: str
    machine: Machine
    affinity: tuple[int, ...]
    threads: int
    governor: str | None
    load_average: tuple[float, float, float]
    steal_s: float | None
    pressure: dict[str, Pressure]


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """Describe the machine that this process runs on."""
    libraries = dict.fromkeys([*LIBRARIES, *(name for runtime in RUNTIMES for name in RUNTIMES[runtime].distributions)])
    first = (_read("/proc/cpuinfo") or "").partition("\n\n")[0]  # the first processor's fields
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    flags = (info.get("flags") or info.get("Features") or "").split()
    firmware = (_read(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
    return Machine(
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        architecture=platform.machine(),
        isa=tuple(name for name in _ISA if name in flags),
        processors=psutil.cpu_count() or 1,
        physical_cores=psutil.cpu_count(logical=False) or 1,
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        libraries={name: installed for name in libraries if (installed := installed_version(name))},
        product=" ".join(filter(None, firmware)),
    )


def fingerprint() -> str:
    """Return the SHA-256 of this host's constant properties and libraries."""
    return this_machine().fingerprint


def observe(threads: int) -> Evidence:
    """Return the host's current state, together with the benchmark's `threads`."""
    return Evidence(
        at_s=time.time(),
        host=platform.node(),
        machine=this_machine(),
        affinity=affinity(),
        threads=threads,
        governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        load_average=os.getloadavg(),
        steal_s=getattr(psutil.cpu_times(), "steal", None),
        pressure={name: measured for name in ("cpu", "memory", "io") if (measured := _pressure(name))},
    )


def affinity() -> tuple[int, ...]:
    """Return the processors that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def available_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(affinity())


def available_memory() -> int:
    """Return the bytes of memory that processes can still allocate on this host or, if less, in this container."""
    available = psutil.virtual_memory().available
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    return min(available, int(limit) - int(used)) if used and limit and limit.isdecimal() else available


def memory_in_use() -> int:
    """Return the resident memory of this process in bytes."""
    resident: int = psutil.Process().memory_info().rss
    return resident


def return_freed_memory() -> None:
    """Return memory to the system that glibc keeps after it was freed: up to 200 MB after a stage of a run."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # other C libraries lack it
        trim(0)


def versions(*further: str) -> dict[str, str]:
    """Return the versions of Python, the `LIBRARIES` and the `further` distributions."""
    installed = {name: installed_version(name) or "not installed" for name in (*LIBRARIES, *further)}
    return {"python": platform.python_version(), **installed}


def installed_version(distribution: str) -> str | None:
    """Return a distribution's installed version without importing it, or None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def host_conditions(*distributions: str) -> dict[str, object]:
    """Return the properties of this host that affect a candidate's outputs, and the versions of `distributions`."""
    machine = this_machine()
    return {
        "machine": machine.digest,
        "environment": machine.environment,
        "versions": {name: installed_version(name) for name in distributions},
        "variables": {name: value for name, value in os.environ.items() if name.startswith(_SELECTING)},
    }


def memory_conditions() -> dict[str, object]:
    """Return the settings of the allocator and of the kernel that affect a process's resident memory."""
    return {
        "allocator": {name: value for name, value in os.environ.items() if name.startswith(_ALLOCATING)},
        "huge pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
    }


def require_installed(subject: str, distributions: Iterable[str], extra: str) -> None:
    """Raise an `UnavailableError` with an install command if any distribution is missing."""
    missing = [distribution for distribution in distributions if installed_version(distribution) is None]
    if missing:
        raise UnavailableError(
            f"{subject} needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed.",
            hint=f"Run: pip install 'nightquant[{extra}]'",
        )


def require_domain(workload: Workload) -> None:
    """Raise an `UnavailableError` if a library that the workload's domain needs is missing."""
    require_installed(f'The "{workload.domain}" domain', workload.distributions, workload.extra)


def _pressure(resource: str) -> Pressure | None:
    text = _read(f"/proc/pressure/{resource}")
    if not text:
        return None
    fields = dict(part.split("=") for part in text.splitlines()[0].split()[1:])
    return Pressure(some_avg10=float(fields["avg10"]), some_total_us=int(fields["total"]))


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None

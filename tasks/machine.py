"""The machine: what is constant about it, its environment, and the state that it is in. Imports no torch."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from storage.digest import canonical_json, digest_of
from storage.errors import UnavailableError
from tasks.extensions import RUNTIMES
from tasks.refs import Frozen
from tasks.workload.workload import Workload

# What decides which numbers a model computes, and how fast.
LIBRARIES = ("torch", "torchvision", "numpy", "safetensors")
_ISA = (
    "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "sve",
)  # fmt: skip
_VNNI = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})


class Machine(Frozen):
    """What stays the same from night to night: the machine, and its environment until that is upgraded.

    ``product`` is what the firmware calls the host, a cloud's type of machine for instance, or "". ``libraries`` holds
    the installed versions of `LIBRARIES` and of what the runtimes need.
    """

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
        """SHA-256 of the hardware: ratios of speed are compared on one machine only."""
        return digest_of(self._rounded({"system", "python", "libraries"}))

    @property
    def environment(self) -> str:
        """What is installed on it: kernel, Python and library versions as canonical JSON."""
        return canonical_json({"kernel": self.system, "python": self.python, **self.libraries})

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the machine with its system, Python and the libraries that decide numbers."""
        libraries = {name: version for name, version in self.libraries.items() if name in LIBRARIES}
        return digest_of(self._rounded({"product"}) | {"libraries": libraries})

    def _rounded(self, without: set[str]) -> dict[str, object]:
        # A reboot into the same kernel reports a few pages more or less.
        return self.model_dump(mode="json", exclude=without) | {"memory_bytes": round(self.memory_bytes / 2**30)}

    @property
    def has_vnni(self) -> bool:
        """Whether the processor multiplies int8 in one instruction (VNNI, AMX, or Arm's dot product)."""
        return not _VNNI.isdisjoint(self.isa)


class Pressure(Frozen):
    """Share of the last 10 s in which some task waited for the resource, in percent, and microseconds since boot."""

    some_avg10: float
    some_total_us: int


class Evidence(Frozen):
    """The machine's state at ``at_s`` (Unix time); ``host`` is its network name.

    ``steal_s`` is the time that the hypervisor gave to others since boot, summed over processors; what cannot be read,
    as in most virtual machines, is None. ``proof_wall_s`` is the time to look at what a benchmark's candidates execute.
    """

    when: Literal["before", "after"]
    at_s: float
    host: str
    machine: Machine
    affinity: tuple[int, ...]
    threads: int
    engines: tuple[str, ...]
    governor: str | None
    frequency_mhz: float | None
    load_average: tuple[float, float, float]
    available_memory_bytes: int
    steal_s: float | None
    pressure: dict[str, Pressure]
    capability: str = ""
    supported_engines: tuple[str, ...] = ()
    launch_affinity: tuple[int, ...] = ()
    involuntary_switches: int | None = None
    voluntary_switches: int | None = None
    start_s: tuple[float, ...] = ()
    first_block_s: tuple[float, ...] = ()
    end_s: tuple[float, ...] = ()
    cold_wall_s: tuple[float, ...] = ()
    proof_wall_s: float | None = None


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """Describe the machine that this process runs on."""
    libraries = dict.fromkeys([*LIBRARIES, *(name for runtime in RUNTIMES for name in RUNTIMES[runtime].distributions)])
    # The first processor's fields; none on other systems than Linux.
    first = (_read("/proc/cpuinfo") or "").partition("\n\n")[0]
    info = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    flags = (info.get("flags") or info.get("Features") or "").split()
    firmware = [_read(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    return Machine(
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        architecture=platform.machine(),
        isa=tuple(name for name in _ISA if name in flags),
        processors=psutil.cpu_count() or 1,
        physical_cores=psutil.cpu_count(logical=False) or 1,
        memory_bytes=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        libraries={name: found for name in libraries if (found := installed_version(name))},
        # Boards without such firmware have a device tree, whose strings end in NUL.
        product=" ".join(filter(None, firmware)) or (_read("/proc/device-tree/model") or "").rstrip("\0"),
    )


def fingerprint() -> str:
    """SHA-256 of what is constant about this machine and its libraries."""
    return this_machine().fingerprint


def observe(when: Literal["before", "after"], threads: int, engines: tuple[str, ...]) -> Evidence:
    """Look at the machine's state now; `threads` and the quantized `engines` are those of the benchmark."""
    frequency = psutil.cpu_freq()
    return Evidence(
        when=when,
        at_s=time.time(),
        host=platform.node(),
        machine=this_machine(),
        affinity=affinity(),
        threads=threads,
        engines=engines,
        governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        frequency_mhz=frequency.current if frequency else None,
        load_average=os.getloadavg(),
        available_memory_bytes=psutil.virtual_memory().available,
        steal_s=getattr(psutil.cpu_times(), "steal", None),
        pressure={name: found for name in ("cpu", "memory", "io") if (found := _pressure(name))},
    )


def affinity() -> tuple[int, ...]:
    """Processors that this process may run on; () where the system does not say."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def available_cores() -> int:
    """Number of processors that this process may run on."""
    return len(affinity()) or os.cpu_count() or 1


def versions(*further: str) -> dict[str, str]:
    """Versions of Python, of `LIBRARIES` and of `further` distributions."""
    found = {name: installed_version(name) or "not installed" for name in (*LIBRARIES, *further)}
    return {"python": platform.python_version(), **found}


def installed_version(distribution: str) -> str | None:
    """The installed version of a distribution, without importing it; None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def require_installed(what: str, distributions: Iterable[str], extra: str) -> None:
    """Refuse what needs distributions that are not installed: the `UnavailableError` says what installs them."""
    missing = [distribution for distribution in distributions if installed_version(distribution) is None]
    if missing:
        raise UnavailableError(
            f"{what} needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed.",
            hint=f"Install it: pip install 'nightquant[{extra}]'.",
        )


def require_domain(workload: Workload) -> None:
    """Refuse a workload if the libraries of its domain are missing; see `require_installed`."""
    require_installed(f'The domain "{workload.domain}"', workload.distributions, workload.extra)


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

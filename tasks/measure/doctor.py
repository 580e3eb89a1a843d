"""Check whether this host is suitable for benchmarks, and suggest improvements."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from storage.errors import MeasurementError
from storage.locks import host_lock
from storage.results import STOLEN_SHARE, WAITED_SHARE, WIDEST
from tasks.environment.machine import Evidence, Machine, observe
from tasks.measure.benchmark.messages import Profile, Subject
from tasks.measure.benchmark.protocol import LOCK, Session
from tasks.measure.benchmark.rounds import Loaded
from tasks.measure.benchmark.statistics import Ratio, verdict_of
from tasks.workload.recipe import CandidateName

_GIB = 1 << 30
_NEEDED_BYTES, _COMFORTABLE_BYTES = _GIB, 5 * _GIB
_BUSY_LOAD = 0.7
_PROFILE = Profile(name="doctor", launches=4, rounds=6, budget_s=0, warm_up_s=0.5, single_calls=2, single_s=0.01)
_FLOAT, _INT8 = CandidateName("float", "eager"), CandidateName("int8", "eager")
_ROWS, _WIDTH = 4, 1024


@dataclass(frozen=True)
class Check:
    """The result of one check; a ``problem`` makes runs fail, and a ``note`` is a warning."""

    name: str
    status: Literal["ok", "note", "problem"]
    found: str
    advice: str = ""


def _checked(name: str, good: bool, result: str, advice: str) -> Check:
    return Check(name, "ok", result) if good else Check(name, "note", result, advice)


def examine(store: str, on_wait: Callable[[], None] = lambda: None) -> list[Check]:
    """Run every check, and hold the host's lock for about ten seconds; call `on_wait` if a benchmark holds the lock."""
    with host_lock(LOCK, on_wait=on_wait):
        before = observe(1)
        measured = _measure()
        after = observe(1)
    machine = before.machine
    size = f"{machine.processors} processors, {machine.memory_bytes / _GIB:.1f} GiB"
    torch = machine.libraries.get("torch", "not installed")
    return [
        Check("machine", "ok", f"{machine.cpu}, {size}, {machine.system}, torch {torch}"),
        check_int8(machine),
        *measured,
        check_busy(before),
        check_steal(before, after),
        check_governor(before),
        check_store(store),
        check_compiler(),
    ]


def check_int8(machine: Machine) -> Check:
    """Check whether the processor has int8 instructions."""
    result = f"instructions: {', '.join(machine.isa) or 'unknown'}"
    advice = "Without VNNI, AMX or dot product, int8 gains less than on newer servers that you may deploy to."
    return _checked("int8 instructions", machine.has_vnni, result, advice)


def check_ratio(ratio: Ratio) -> Check:
    """Check whether torch's int8 kernels are faster than torch's float kernels."""
    result = f"int8 linear layer {ratio.value:.2f}× as fast as float ({ratio.low:.2f} to {ratio.high:.2f})"
    return _checked(
        "int8 kernels",
        ratio.low > 1,
        result,
        "int8 is not faster on this host: quantize for size, or deploy to other hardware.",
    )


def check_repeatable(aa: Ratio) -> Check:
    """Check whether the benchmark measures the same speed for a model and its copy."""
    result = f"the same model against itself: {aa.value:.3f} ({aa.low:.3f} to {aa.high:.3f})"
    advice = (
        f"Beyond ±{WIDEST:.0%}, a benchmark needs more launches to decide small differences: stop other programs, "
        "pin the frequency, or use dedicated hardware."
    )
    return _checked("A/A", verdict_of(aa) == "valid", result, advice)


def check_busy(evidence: Evidence) -> Check:
    """Check whether other programs are running."""
    share = evidence.load_average[0] / evidence.machine.processors
    pressure = evidence.pressure.get("cpu")
    result = f"load {evidence.load_average[0]:.2f} on {evidence.machine.processors} processors"
    if pressure:
        result += f", tasks waited for a processor in {pressure.some_avg10:.0f}% of the last 10 s"
    busy = share > _BUSY_LOAD or (pressure is not None and pressure.some_avg10 > 100 * WAITED_SHARE)
    return _checked("other work", not busy, result, "Other programs are running: stop them, or expect wide intervals.")


def check_steal(before: Evidence, after: Evidence) -> Check:
    """Check whether the hypervisor gave processor time to other guests during the benchmark."""
    if before.steal_s is None or after.steal_s is None:
        return Check("steal time", "ok", "not reported by this system")
    share = (after.steal_s - before.steal_s) / max(1e-9, after.at_s - before.at_s) / after.machine.processors
    result = f"{share:.1%} of the processors' time went to other virtual machines on this host"
    return _checked("steal time", share <= STOLEN_SHARE, result, "Use a host with dedicated processors.")


def check_governor(evidence: Evidence) -> Check:
    """Check whether the processor's frequency changes with the load."""
    result = f"governor: {evidence.governor or 'not readable (a virtual machine?)'}"
    advice = "Set the governor to performance: sudo cpupower frequency-set -g performance."
    return _checked("frequency", evidence.governor in (None, "performance"), result, advice)


def check_store(store: str) -> Check:
    """Check whether the store is writable and has free space."""
    if "://" in store:
        return Check("store", "ok", f"{store}: remote; `nightquant store check` checks it")
    place = Path(store).absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Check("store", "problem", f"{store} cannot be written", "Fix the permissions or pass another --store.")
    free = shutil.disk_usage(place).free
    result = f"{store}: writable, {free / _GIB:.1f} GiB free"
    if free < _NEEDED_BYTES:
        return Check("store", "problem", result, "Free some space: nightquant store gc.")
    return _checked("store", free >= _COMFORTABLE_BYTES, result, "Large data sets need more space.")


def check_compiler() -> Check:
    """Check whether torch can find a C++ compiler."""
    command = os.environ.get("CXX", "g++")
    result = shutil.which(next(iter(command.split()), ""))
    advice = 'The "aot-inductor" runtime needs a compiler: run `apt install g++`, or set CXX to a compiler.'
    return _checked("C++ compiler", result is not None, result or f"no {command}", advice)


def load(subject: Subject) -> Loaded:
    """Return the small seeded model to time: one linear layer in float or int8, depending on the subject's name."""
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(_ROWS, _WIDTH, generator=generator)
    weight = torch.randn(_WIDTH, _WIDTH, generator=generator) / _WIDTH**0.5
    if subject.name != _INT8:
        return Loaded(partial(torch.nn.functional.linear, inputs, weight))
    quantized = torch.quantize_per_tensor(weight, float(weight.abs().max()) / 127, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantized, None)
    # `reduce_range` limits activations to 7 bits, because 8-bit products can overflow 16-bit sums on CPUs without VNNI.
    return Loaded(partial(torch.ops.quantized.linear_dynamic, inputs, packed, True))


def _measure() -> list[Check]:
    subjects = [Subject(name=name) for name in (_FLOAT, _INT8)]
    try:
        measured = Session(_FLOAT, _PROFILE, loader=f"{__name__}:{load.__name__}").measure(subjects)
    except MeasurementError as error:
        return [Check("A/A", "problem", str(error), "Reinstall torch, which does not run on this host.")]
    if (reason := measured.refused.get(str(_INT8))) is not None:
        kernels = Check("int8 kernels", "problem", reason, "This build of torch has no int8 kernels.")
    else:
        kernels = check_ratio(measured.ratio(str(_INT8)))
    return [kernels, check_repeatable(measured.aa_ratio())]

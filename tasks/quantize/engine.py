"""What torch's quantization needs of the process: the engine whose int8 kernels it uses, and fewer warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from storage.errors import QuantizationError, UnavailableError
from tasks.machine import this_machine
from tasks.quantize.spec import Spec

# Given at every use of what torch has deprecated.
_DEPRECATIONS = (
    r"(?s)torch\.quantize_per_tensor, torch\.quantize_per_channel and other quantized tensor creation functions.*",
    r"(?s).*torch\.ao\.quantization is deprecated.*",
    r"(?s)Please use quant_min and quant_max to specify the range for observers.*",
    # Given for onednn without VNNI at every use; a bit is kept free there (`saturates`).
    r"(?s)Default qconfig of oneDNN backend with reduce_range of false.*",
    r"(?s).*`?torch\.jit\.\w+`? is (not supported|deprecated).*",
)


@contextmanager
def quantized_engine(name: str) -> Iterator[None]:
    """Run the block with the quantized engine `name`, then restore the one there was.

    Weights are packed in an engine's own layout, and some operators ask the setting when they run, so this must
    surround converting, loading and calling a model.

    Raises
    ------
    QuantizationError
        This build of torch has no such engine for this processor.
    """
    supported = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
    if name not in supported:
        raise QuantizationError(
            f'The quantized engine "{name}" is not supported here.',
            hint=f"Set the recipe's engine to one of: {', '.join(sorted(supported))}.",
        )
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


@contextmanager
def running(spec: Spec) -> Iterator[None]:
    """Run the block with the spec's quantized engine, or with oneDNN switched off for a float model."""
    if spec.engine is not None:
        with quantized_engine(spec.engine):
            yield
        return
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and spec.onednn)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@cache
def saturates(engine: str) -> bool:
    """Report whether an engine's sums of 8-bit products saturate in this process if all 8 bits are used.

    Only oneDNN's do: without VNNI, its kernels add pairs of products in 16 bits, and no bit is kept free for them. The
    largest sum is tried out, because oneDNN also obeys a switch of its own (``ONEDNN_MAX_CPU_ISA``), which CPUID does
    not show. The operator takes plain tensors: torch's quantized ones are deprecated.
    """
    if engine != "onednn" or engine not in torch.backends.quantized.supported_engines:
        return False
    terms, largest = 64, (255, 127)
    inputs = torch.full((1, terms), largest[0], dtype=torch.uint8)
    weights = torch.full((1, terms), largest[1], dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weights, [1, terms])
    scale, zero_point = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    outputs = torch.ops.onednn.qlinear_pointwise(
        inputs, 1.0, 0, packed, scale, zero_point, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return float(outputs) < terms * largest[0] * largest[1]


def instruction_set() -> dict[str, object]:
    """Return what of this processor may change how models are quantized and packed."""
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "vnni": bool(torch.cpu._is_vnni_supported()),
        "saturates": saturates("onednn"),
    }


BFLOAT16 = ("amx_bf16", "avx512_bf16")


def computes_bfloat16() -> bool:
    """Report whether this processor multiplies bfloat16 in one instruction."""
    return bool(set(BFLOAT16) & set(this_machine().isa))


def require_bfloat16(recipe: str) -> None:
    """Refuse, with an `UnavailableError`, a processor that can only emulate bfloat16."""
    if not computes_bfloat16():
        raise UnavailableError(
            f'The recipe "{recipe}" needs a processor with {" or ".join(BFLOAT16)}; this one has neither.',
            hint="Drop the recipe on machines of this kind, or run the night on another.",
        )


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Run the block without torch's deprecation warnings; a stage does so from one thread at a time."""
    with warnings.catch_warnings():
        for message in _DEPRECATIONS:
            warnings.filterwarnings("ignore", message=message)
        _use_up_the_one_for_tensors()
        yield


@cache
def _use_up_the_one_for_tensors() -> None:
    # torch gives this one once in a process: past Python's filters where TorchScript is opened, through them here.
    torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.qint8)

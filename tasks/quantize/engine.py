"""Prepare the process for torch's quantization: set the engine for int8 kernels, and silence deprecation warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from storage.errors import QuantizationError, UnavailableError
from tasks.environment.machine import this_machine
from tasks.quantize.spec import Spec

# torch repeats a deprecation warning on every call to a deprecated function.
_DEPRECATIONS = (
    r"(?s)torch\.quantize_per_tensor, torch\.quantize_per_channel and other quantized tensor creation functions.*",
    r"(?s).*torch\.ao\.quantization is deprecated.*",
    r"(?s)Please use quant_min and quant_max to specify the range for observers.*",
    # torch warns that ``onednn`` is less accurate without VNNI. The warning does not apply, because nightquant leaves
    # one bit unused to prevent saturation.
    r"(?s)Default qconfig of oneDNN backend with reduce_range of false.*",
    r"(?s).*`?torch\.jit\.\w+`? is (not supported|deprecated).*",
)


@contextmanager
def quantized_engine(name: str) -> Iterator[None]:
    """Run the block with the quantized engine `name`, which packs weights in its own layout."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before


@contextmanager
def running(spec: Spec) -> Iterator[None]:
    """Run the block with the spec's quantized engine or, if the spec has no engine, with the spec's oneDNN setting."""
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
    """Return whether an engine's 16-bit sums saturate in this process if activations use all 8 bits.

    Only ``onednn`` can saturate (without VNNI), because PyTorch leaves one bit unused for ``x86`` and ``fbgemm``. The
    function computes the largest possible sum, because CPUID does not reflect ``ONEDNN_MAX_CPU_ISA``.
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


class RefusingReferenceLoops(TorchFunctionMode):
    """A torch mode that refuses static Linear layers that ``onednn`` computes in a reference loop.

    oneDNN's fast kernels for these layers need inputs whose zero point is 0, for example the outputs of a ReLU.
    """

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Any = None
    ) -> object:
        if str(func).startswith("quantized.linear") and torch.backends.quantized.engine == "onednn":
            inputs = args[0]
            if isinstance(inputs, torch.Tensor) and inputs.is_quantized and inputs.q_zero_point():
                raise QuantizationError(
                    'The "onednn" engine computes a Linear layer about a thousand times slower than "x86", because '
                    "the zero point of its inputs is not 0.",
                    hint='Set engine = "x86".',
                )
        return func(*args, **(kwargs or {}))


def instruction_set() -> dict[str, object]:
    """Return the properties of this processor that can affect how models are quantized and packed."""
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "vnni": bool(torch.cpu._is_vnni_supported()),
        "saturates": saturates("onednn"),
    }


BFLOAT16 = ("amx_bf16", "avx512_bf16")


def computes_bfloat16() -> bool:
    """Return whether this processor has instructions that multiply bfloat16 numbers."""
    return bool(set(BFLOAT16) & set(this_machine().isa))


def require_bfloat16(recipe: str) -> None:
    """Raise `UnavailableError` if this processor can only emulate bfloat16."""
    if not computes_bfloat16():
        raise UnavailableError(
            f'The "{recipe}" recipe needs a processor with {" or ".join(BFLOAT16)}, but this processor has neither.',
            hint="Remove the recipe, or run nightquant on a host whose processor supports bfloat16.",
        )


@contextmanager
def without_deprecations() -> Iterator[None]:
    """Silence torch's deprecation warnings in the block, which only one thread at a time may enter."""
    with warnings.catch_warnings():
        for message in _DEPRECATIONS:
            warnings.filterwarnings("ignore", message=message)
        _trigger_tensor_deprecation()
        yield


@cache
def _trigger_tensor_deprecation() -> None:
    # torch warns about quantized tensors only once per process. Trigger the quantized-tensor warning here, because
    # a warning from opening a TorchScript file would bypass Python's warning filters.
    torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.qint8)

"""The quantized engine: the library whose int8 kernels torch uses, one setting for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import QuantizationError


class _Turns:
    """Lets threads share the setting while they want the same engine, and makes others wait for their turn."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._holders: list[tuple[int, str]] = []
        self._before = ""

    def take(self, name: str) -> None:
        me = threading.get_ident()
        with self._condition:
            # A thread may go on to another engine within its own block.
            self._condition.wait_for(lambda: all(engine == name or thread == me for thread, engine in self._holders))
            if not self._holders:
                self._before = torch.backends.quantized.engine
            self._holders.append((me, name))
            torch.backends.quantized.engine = name

    def give_back(self, name: str) -> None:
        with self._condition:
            self._holders.remove((threading.get_ident(), name))
            torch.backends.quantized.engine = self._holders[-1][1] if self._holders else self._before
            self._condition.notify_all()


# One for the process, as the setting that it guards is.
_TURNS = _Turns()


@contextmanager
def quantized_engine(name: str) -> Iterator[None]:
    """Run the block with the quantized engine `name`, then restore the one there was.

    Weights are packed in an engine's own layout, so this must surround converting and loading a model. Threads that
    want different engines wait for each other.

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
    _TURNS.take(name)
    try:
        yield
    finally:
        _TURNS.give_back(name)


class OnEngine(nn.Module):
    """A model whose calls set the quantized engine that it needs."""

    def __init__(self, model: nn.Module, engine: str) -> None:
        super().__init__()
        self.model = model
        self.engine = engine

    def forward(self, *inputs: Tensor) -> Any:
        """Call the model under its engine."""
        with quantized_engine(self.engine):
            return self.model(*inputs)


def bind_engine(model: nn.Module, engine: str) -> nn.Module:
    """Make calls of a statically quantized model right under the process's present engine.

    Products and convolutions follow their packed weights whatever the setting is. Some operators between them (the
    addition of two quantized tensors is one) ask the setting when they run, and take another kernel, with other
    rounding, where it is qnnpack. So a model is wrapped only where one of the two engines is qnnpack and the other is
    not.
    """
    if (engine == "qnnpack") == (torch.backends.quantized.engine == "qnnpack"):
        return model
    return OnEngine(model, engine)


def instruction_set() -> dict[str, str | bool]:
    """What of this processor may change how weights are quantized and packed."""
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "vnni": bool(torch.cpu._is_vnni_supported()),
    }

"""TorchScript: traced with the example inputs, frozen, and loadable where this project is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from storage.errors import QuantizationError
from tasks.quantize.warnings import quiet


def write_script(model: nn.Module, example_inputs: Mapping[str, Tensor], path: Path, *, exact: bool) -> nn.Module:
    """Trace, freeze and save `model`, and give back what was saved.

    Parameters
    ----------
    exact
        Keep every operation as it is, for outputs equal to the model's bit for bit; otherwise freezing may fold float
        operations into each other (a batch norm into its convolution), which is faster and rounds otherwise.

    Raises
    ------
    QuantizationError
        The model cannot be traced.
    """
    with quiet(), torch.no_grad():
        try:
            traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                model, tuple(example_inputs.values()), check_trace=False
            )
        except (RuntimeError, TypeError) as error:
            raise QuantizationError(f"The model cannot be traced to TorchScript: {error}") from error
        frozen: torch.jit.ScriptModule = torch.jit.freeze(traced.eval(), optimize_numerics=not exact)
        # Not frozen.save(path): on a full disk torch's writer aborts the whole process.
        path.write_bytes(frozen.save_to_buffer())
    return frozen


def read_script(path: Path) -> nn.Module:
    """Load what `write_script` wrote; packed weights are packed for the engine that is set now."""
    with quiet():
        script: nn.Module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    return script

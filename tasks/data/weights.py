"""Read state dicts from untrusted files and from the store, and build models without weights."""

from __future__ import annotations

import argparse
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy._core.multiarray as multiarray
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import InputError, first_line
from storage.transfer import Source, fetch, local_path
from tasks.values.job import Workspace
from tasks.values.refs import CheckpointRef
from tasks.workload.base import FetchedCheckpoint

WEIGHTS_FILE = "weights.safetensors"
DIRECTORY_WEIGHTS = "model.safetensors"  # weights in a folder that transformers or safetensors saved
_DEEPEST = 3  # limit the nesting depth, because a dict can contain itself
# Types of the options and scores that training scripts save beside the weights; none of them runs code.
_PLAIN: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    argparse.Namespace, multiarray.scalar, np.dtype, np.dtypes.Float64DType, np.dtypes.Float32DType
]  # fmt: skip
_AVERAGED = "n_averaged"  # counter that ``torch.optim.swa_utils.AveragedModel`` saves alongside ``module.…`` keys


class StateDict(OrderedDict[str, Tensor]):
    """A state dict that was read from a file; ``notes`` describes which part of the file it is."""

    notes: tuple[str, ...] = ()

    def without(self, names: Sequence[str]) -> StateDict:
        """Remove the named tensors and the tensors of the named modules; refuse names that match none."""
        matches = {name: {key for key in self if key == name or key.startswith(f"{name}.")} for name in names}
        if unknown := [name for name, keys in matches.items() if not keys]:
            raise InputError(
                f"checkpoint.leave_out names tensors that the file does not contain: {', '.join(unknown[:5])}.",
                hint="Remove these names, or correct them.",
            )
        if left := set[str]().union(*matches.values()):
            note = f"left out {len(left)} of {len(self)} tensors, which checkpoint.leave_out names"
            self.notes = (*self.notes, note)
        for key in left:
            del self[key]
        return self


def read_state(path: Path, shown: str = "") -> StateDict:
    """Read a state dict from a safetensors or ``torch.save`` file with PyTorch's restricted unpickler.

    Of several state dicts in nested dicts, return the largest one, or averaged weights if two are equally large.
    """
    shown = shown or str(path)
    try:
        with path.open("rb") as stream:
            start = stream.read(9)
            stream.seek(0)
            # A safetensors file starts with the length of its JSON header; the header starts with a brace.
            if start[8:] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000:
                loaded = load_file(path)
            else:
                # Pass a stream, because torch would derive the format from a path's suffix.
                with torch.serialization.safe_globals(_PLAIN):
                    loaded = torch.load(stream, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))  # torch's message is long, and recommends unsafe loading
        raise InputError(
            f"{shown} was refused, because loading the file could run code{f' of {name[1]}' if name else ''}.",
            hint="Save only the model's state_dict(), preferably with safetensors.",
        ) from error
    except Exception as error:  # torch's unpickler can raise any exception for a damaged file
        raise InputError(
            f"{shown} cannot be read as a state dict: {first_line(error)}.",
            hint="Save the state dict again with torch.save(model.state_dict(), path) or safetensors.",
        ) from error
    found = sorted(_state_dicts(loaded), key=lambda pair: (-len(pair[1]), "ema" not in pair[0]))
    if not found:
        content = f"a dict with the keys {list(loaded)[:5]}" if isinstance(loaded, dict) else type(loaded).__name__
        raise InputError(f"{shown} contains {content}, not a state dict.", hint="Save model.state_dict().")
    (place, state), *rest = found
    # Check sizes before the first copy, because a tensor that repeats one stored value can have any size.
    if repeated := [key for key, tensor in state.items() if tensor.nbytes > tensor.untyped_storage().nbytes()]:
        raise InputError(
            f"These tensors in {shown} have more values than the file contains: {', '.join(repeated[:5])}.",
            hint="Call contiguous() on each tensor before you save the file.",
        )
    unused = "".join(f' and not "{other}"' for other, tensors in rest if len(tensors) == len(state))
    state.notes = (f'used the weights under "{place}"{unused}',) if place else ()
    return state


def _state_dicts(loaded: object, place: str = "", depth: int = _DEEPEST) -> Iterator[tuple[str, StateDict]]:
    """Yield each state dict in `loaded`, and the path of keys to it, such as ``state_dict.model``."""
    if not isinstance(loaded, Mapping) or not loaded or not depth:
        return
    if all(isinstance(key, str) and isinstance(item, Tensor) for key, item in loaded.items()):
        state = StateDict((key, tensor) for key, tensor in loaded.items() if key != _AVERAGED)
        if hasattr(loaded, "_metadata"):  # the versions of the modules' layouts
            state._metadata = loaded._metadata  # type: ignore[attr-defined]
        yield place, state
        return
    for key, item in loaded.items():
        yield from _state_dicts(item, f"{place}.{key}" if place else str(key), depth - 1)


def fetch_weights(settings: FetchedCheckpoint, workspace: Workspace) -> AbstractContextManager[Source]:
    """Open the weights that ``checkpoint.uri`` names; see `storage.transfer.fetch`."""
    local = local_path(settings.uri)
    return fetch(
        str(local / DIRECTORY_WEIGHTS) if local is not None and local.is_dir() else settings.uri,
        workspace.store.root / "downloads",
        sha256=settings.sha256,
        progress=workspace.progress,
    )


def load_state(checkpoint: CheckpointRef, store: ArtifactStore) -> dict[str, Tensor]:
    """Load a checkpoint's state dict from the store, where floating-point tensors are always float32."""
    return load_file(store.path(checkpoint.kind, checkpoint.digest) / WEIGHTS_FILE)


def load_checkpoint(model: nn.Module, checkpoint: CheckpointRef, store: ArtifactStore) -> None:
    """Load a checkpoint from the store into its model."""
    # Stored checkpoints lack the layout versions that torchvision's MNASNet requires, but have the current layout.
    state = model.state_dict()
    state.clear()
    state.update(load_state(checkpoint, store))
    model.load_state_dict(state)


def build_blank(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model for inspecting its structure, without allocating memory for the weights if possible."""
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # noqa: BLE001 - building on the CPU raises the error again, unless meta caused the error
        # A constructor may read tensor values, for example with ``torch.linspace(…).tolist()`` for stochastic depth.
        with torch.random.fork_rng(devices=[]):
            return make()

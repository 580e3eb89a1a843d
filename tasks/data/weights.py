"""State dicts: read from files that others wrote, tensors only, and from the store; and models without weights."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from storage.artifacts import ArtifactStore
from storage.errors import InputError, first_line
from storage.errors import shown as as_shown
from storage.transfer import fetch
from tasks.job import Workspace
from tasks.refs import CheckpointRef
from tasks.workload.base import FetchedCheckpoint

WEIGHTS_FILE = "weights.safetensors"

# Keys under which training scripts put the state dict beside optimizer state, epoch and so on; the first one is taken.
_WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "ema",
    "model_ema",
    "ema_state_dict",
    "state_dict_ema",
)
# Prefixes that DataParallel (and weight averaging) and torch.compile put before every key.
_PREFIXES = ("module.", "_orig_mod.")
_AVERAGED = "n_averaged"  # torch.optim.swa_utils.AveragedModel counts beside its ``module.``


class StateDict(dict[str, Tensor]):
    """A state dict as a file held it.

    ``versions`` are those in which modules were saved, by the modules' names, as PyTorch notes them in ``_metadata``.
    ``notes`` say, for the user, what was done to the file's content.
    """

    def __init__(self, tensors: Mapping[str, Tensor], versions: Mapping[str, int], notes: Sequence[str]) -> None:
        super().__init__(tensors)
        self.versions, self.notes = versions, tuple(notes)


def read_state(path: Path, shown: str = "") -> StateDict:
    """Read a state dict from a safetensors or a ``torch.save`` file, by content and not by name.

    A pickle is opened with PyTorch's restricted unpickler, which makes tensors and plain containers and calls nothing
    else; anything beyond that is refused before it runs. Wrappers and prefixes that training scripts add are taken off.
    Messages call the file `shown`, where its path is not what the user wrote.

    Raises
    ------
    InputError
        The file is broken, does not hold a state dict, or would run code.
    """
    shown = shown or str(path)
    try:
        # By stream and not by path: given a path, torch takes a name's ending for the format.
        with path.open("rb") as stream:
            start = stream.read(9)
            stream.seek(0)
            # Safetensors begin with the length of their JSON header, which begins with a brace.
            is_safetensors = start[8:] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000
            if start.startswith(b"PK") and zipfile.is_zipfile(stream):
                _check_plain_zip(stream)
            stream.seek(0)
            loaded = load_file(path) if is_safetensors else torch.load(stream, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{shown}: refused, because loading it could run code: it holds more than tensors.",
            hint=f"Save the model's state_dict() alone, best with safetensors. What was refused: {first_line(error)}",
        ) from error
    except Exception as error:  # a damaged file makes torch's unpickler fail in any way: struct.error, AssertionError…
        raise InputError(
            f"{shown}: cannot be read as a state dict: {first_line(error)}.",
            hint="Is it whole? Expected a file of torch.save(model.state_dict()) or of safetensors.",
        ) from error
    state = _unwrap(loaded, shown)
    if unusual := [
        key
        for key, tensor in state.items()
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta
    ]:
        raise InputError(
            f"{shown}: tensors that are sparse, nested, quantized or without values: {', '.join(unusual[:5])}.",
            hint="Save plain dense float tensors.",
        )
    # Before anything copies them: a tensor may repeat one value as often as it says.
    if repeated := [key for key, tensor in state.items() if tensor.nbytes > tensor.untyped_storage().nbytes()]:
        raise InputError(
            f"{shown}: tensors with more values than the file holds for them: {', '.join(repeated[:5])}.",
            hint="Save contiguous ones: tensor.contiguous().",
        )
    return state


def read_fetched(settings: FetchedCheckpoint, workspace: Workspace) -> StateDict:
    """Read the file that ``checkpoint.uri`` names, whatever model it is for.

    Raises
    ------
    InputError
        It cannot be had, or holds no state dict.
    """
    folder = workspace.store.root / "downloads"
    with fetch(settings.uri, folder, sha256=settings.sha256, max_bytes=settings.max_bytes) as source:
        return read_state(source.path(), as_shown(settings.uri))


def load_state(checkpoint: CheckpointRef, store: ArtifactStore) -> dict[str, Tensor]:
    """Load the state dict of a checkpoint in the store; floating-point tensors are float32.

    Raises
    ------
    StoreError
        It is not there, or is damaged.
    """
    state: dict[str, Tensor] = load_file(store.path(checkpoint.kind, checkpoint.digest) / WEIGHTS_FILE)
    return state


def build_blank(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model of which only names, shapes and classes matter: without memory for its weights if possible.

    `make` builds it on torch's default device. The global generator is left as it was.
    """
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # noqa: BLE001 - whatever it is, a build on the CPU meets it again unless meta was the reason
        # A constructor may ask for a tensor's values: rates of stochastic depth by torch.linspace(…).tolist().
        with torch.random.fork_rng(devices=[]):
            return make()


def _check_plain_zip(stream: IO[bytes]) -> None:
    """Refuse a zip that unpacks to more than it is: torch.save compresses nothing, and torch.load unpacks in memory."""
    with zipfile.ZipFile(stream) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise ValueError("its parts are compressed, which torch.save does not do")


def _unwrap(loaded: object, shown: str) -> StateDict:
    notes: list[str] = []
    for _ in range(8):  # a dict can hold itself
        if not isinstance(loaded, Mapping):
            break
        if loaded and all(isinstance(key, str) and isinstance(item, Tensor) for key, item in loaded.items()):
            return _without_prefixes(loaded, notes)
        levels = [key for key in _WRAPPERS if isinstance(loaded.get(key), Mapping)]
        if levels:
            others = f' and not "{levels[1]}", which is there too' if len(levels) > 1 else ""
            notes.append(f'took the weights under "{levels[0]}"{others}')
            loaded = loaded[levels[0]]
    found = f"keys {list(loaded)[:5]}" if isinstance(loaded, Mapping) else type(loaded).__name__
    raise InputError(
        f"{shown}: holds no state dict (found {found}).", hint="Expected names of parameters with their tensors."
    )


def _without_prefixes(state: Mapping[str, Tensor], notes: list[str]) -> StateDict:
    versions = _versions(state)
    tensors = dict(state)
    while prefix := next((each for each in _PREFIXES if _all_below(each, tensors)), ""):
        if tensors.pop(_AVERAGED, None) is not None:
            notes.append(f'left out "{_AVERAGED}"')
        notes.append(f'took the prefix "{prefix}" off every key')
        tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
        versions = {name.removeprefix(prefix): version for name, version in versions.items()}
    return StateDict(tensors, versions, notes)


def _all_below(prefix: str, tensors: Mapping[str, Tensor]) -> bool:
    keys = tensors.keys() - {_AVERAGED}
    return bool(keys) and all(key.startswith(prefix) for key in keys)


def _versions(state: Mapping[str, Tensor]) -> dict[str, int]:
    """What ``torch.save`` keeps beside the keys of an ordered dict; a file may claim anything there."""
    metadata = getattr(state, "_metadata", None)
    entries = metadata.items() if isinstance(metadata, Mapping) else ()
    found = {name: entry.get("version") for name, entry in entries if isinstance(entry, Mapping)}
    return {name: version for name, version in found.items() if isinstance(name, str) and isinstance(version, int)}

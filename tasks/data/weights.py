"""State dicts: read from files that others wrote, tensors only, and from the store; and models without weights."""

from __future__ import annotations

import pickle
import re
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from storage.artifacts import ArtifactStore
from storage.errors import InputError, first_line, printable
from storage.errors import shown as as_shown
from tasks.data.weight_files import fetch_weights, weight_files
from tasks.job import Workspace
from tasks.refs import CheckpointRef
from tasks.workload.base import FetchedCheckpoint

WEIGHTS_FILE = "weights.safetensors"

# Keys under which training scripts put the state dict beside optimizer state, epoch and so on. Averaged weights come
# first: a script that keeps both evaluates and publishes these.
_LEVELS = (
    "state_dict_ema",
    "ema_state_dict",
    "model_ema",
    "params_ema",
    "ema",
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "params",
    "net",
)
_DEEPEST = 4  # levels; a dict can hold itself
_AVERAGED = "n_averaged"  # torch.optim.swa_utils.AveragedModel counts beside its ``module.``
_MOST_NAMED, _MOST_CLASSES = 3, 100
_placing = threading.Lock()  # torch keeps the classes that may be loaded in one place for all threads


class StateDict(dict[str, Tensor]):
    """A state dict as a file held it.

    ``versions`` are those in which modules were saved, by the modules' names, as PyTorch notes them in ``_metadata``.
    ``notes`` say, for the user, what was done to the file's content.
    """

    def __init__(self, tensors: Mapping[str, Tensor], versions: Mapping[str, int], notes: Sequence[str]) -> None:
        super().__init__(tensors)
        self.versions, self.notes = versions, tuple(notes)


class _Placeholder:
    """Takes the place of an object that is neither a tensor nor a plain value, of which nothing is loaded or run."""

    def __init__(self, *_arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def read_state(path: Path, shown: str = "") -> StateDict:
    """Read a state dict from a safetensors or a ``torch.save`` file, by content and not by name.

    `path` may also be a folder or an index of several such files. A pickle is opened with PyTorch's restricted
    unpickler, which makes tensors and plain containers and calls nothing else. Objects of other classes beside the
    weights, such as training arguments, become placeholders without their class being imported. Levels that training
    scripts add are taken off. Messages call the file `shown`, where its path is not what the user wrote.

    Raises
    ------
    InputError
        The file is broken, does not hold a state dict, or would run code.
    """
    shown = shown or str(path)
    files = weight_files(path) or [path]
    contents = [_read_file(file, shown if len(files) == 1 else str(file)) for file in files]
    loaded, others = contents[0][0], [name for _, names in contents for name in names]
    if len(contents) > 1:
        loaded = {key: item for part, _ in contents if isinstance(part, Mapping) for key, item in part.items()}
    state = _find(loaded)
    if state is None:
        if others:
            raise _refused(shown, others)
        found = f"keys {list(loaded)[:5]}" if isinstance(loaded, Mapping) else type(loaded).__name__
        raise InputError(
            f"{shown}: holds no state dict (found {found}).", hint="Expected names of parameters with their tensors."
        )
    if others:
        state.notes = (f"left out objects of {_named(others)}", *state.notes)
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


def _read_file(path: Path, shown: str) -> tuple[object, list[str]]:
    """Read what a file holds, and the names of the classes whose objects are placeholders in it."""
    others: list[str] = []
    try:
        # By stream and not by path: given a path, torch takes a name's ending for the format.
        with path.open("rb") as stream:
            start = stream.read(9)
            # Safetensors begin with the length of their JSON header, which begins with a brace.
            is_safetensors = start[8:] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000
            if start.startswith(b"PK") and zipfile.is_zipfile(stream):
                _check_plain_zip(stream)
                stream.seek(0)
                others = sorted(get_unsafe_globals_in_checkpoint(stream))
            stream.seek(0)
            loaded = load_file(path) if is_safetensors else _load(stream, others)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))  # torch's message is a page on how to load it all the same
        raise _refused(shown, others or [found[1] if found else "an operation of the pickle"]) from error
    except Exception as error:  # a damaged file makes torch's unpickler fail in any way: struct.error, AssertionError…
        raise InputError(
            f"{shown}: cannot be read as a state dict: {first_line(error)}.",
            hint="Is it whole? Expected a file of torch.save(model.state_dict()) or of safetensors.",
        ) from error
    return loaded, others


def read_fetched(settings: FetchedCheckpoint, workspace: Workspace) -> StateDict:
    """Read the file that ``checkpoint.uri`` names, whatever model it is for.

    Raises
    ------
    InputError
        It cannot be had, or holds no state dict.
    """
    with fetch_weights(settings, workspace) as source:
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
        if any(part.filename.endswith("/constants.pkl") for part in archive.infolist()):
            raise ValueError("it is a TorchScript program")
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise ValueError("its parts are compressed, which torch.save does not do")


def _load(stream: IO[bytes], others: Sequence[str]) -> object:
    """Load what ``torch.save`` wrote, with a placeholder for each object of the classes that `others` names."""
    if not others or len(others) > _MOST_CLASSES:  # torch takes longer the more there are, and then refuses them
        return torch.load(stream, map_location="cpu", weights_only=True)
    with _placing, safe_globals([(_Placeholder, name) for name in others]):
        return torch.load(stream, map_location="cpu", weights_only=True)


def _find(loaded: object, depth: int = _DEEPEST) -> StateDict | None:
    """Find the state dict in what training scripts put around it: of several, the one with the most tensors."""
    if not isinstance(loaded, Mapping) or not depth:
        return None
    if loaded and all(isinstance(key, str) and isinstance(item, Tensor) for key, item in loaded.items()):
        averaged = {key: tensor for key, tensor in loaded.items() if key != _AVERAGED}
        if _AVERAGED in loaded and averaged and all(key.startswith("module.") for key in averaged):
            return StateDict(averaged, _versions(loaded), [f'left out "{_AVERAGED}"'])
        return StateDict(loaded, _versions(loaded), [])
    found = [(level, state) for level in _LEVELS if (state := _find(loaded.get(level), depth - 1)) is not None]
    if not found:
        return None
    level, state = max(found, key=lambda pair: len(pair[1]))  # the first of equals
    not_taken = "".join(f' and not "{other}"' for other, _ in found if other != level)
    state.notes = (f'took the weights under "{level}"{not_taken and f"{not_taken}, which is there too"}', *state.notes)
    return state


def _refused(shown: str, classes: Sequence[str]) -> InputError:
    return InputError(
        f"{shown}: refused, because loading it could run code: it holds more than tensors.",
        hint=f"Save the model's state_dict() alone, best with safetensors. What was refused: {_named(classes)}.",
    )


def _named(classes: Sequence[str]) -> str:
    rest = len(classes) - _MOST_NAMED
    return printable(", ".join(classes[:_MOST_NAMED])) + (f" and {rest} more classes" if rest > 0 else "")


def _versions(state: Mapping[str, Tensor]) -> dict[str, int]:
    """What ``torch.save`` keeps beside the keys of an ordered dict; a file may claim anything there."""
    metadata = getattr(state, "_metadata", None)
    entries = metadata.items() if isinstance(metadata, Mapping) else ()
    found = {name: entry.get("version") for name, entry in entries if isinstance(entry, Mapping)}
    return {name: version for name, version in found.items() if isinstance(name, str) and isinstance(version, int)}

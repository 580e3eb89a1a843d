"""Read state dicts from untrusted files and from the store, and build models without weights."""

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

# Keys under which training scripts save the state dict, alongside values such as the optimizer state. Keys for averaged
# weights come first, because scripts that save several sets of weights publish the averaged set.
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
_DEEPEST = 4  # limit the nesting depth, because a dict can contain itself
_AVERAGED = "n_averaged"  # counter that ``torch.optim.swa_utils.AveragedModel`` saves alongside ``module.…`` keys
_MOST_NAMED, _MOST_CLASSES = 3, 100
_allowing = threading.Lock()  # all threads share torch's list of allowed classes


class StateDict(dict[str, Tensor]):
    """A state dict that was read from a file.

    ``versions`` maps module names to the versions in PyTorch's ``_metadata``. ``notes`` describes how the file's
    content was changed.
    """

    def __init__(self, tensors: Mapping[str, Tensor], versions: Mapping[str, int], notes: Sequence[str]) -> None:
        super().__init__(tensors)
        self.versions, self.notes = versions, tuple(notes)

    def without(self, names: Sequence[str]) -> StateDict:
        """Return the state dict without the named tensors, and without all tensors of the named modules.

        Raises
        ------
        InputError
            A name matches neither a tensor nor a module.
        """
        matches = {name: {key for key in self if key == name or key.startswith(f"{name}.")} for name in names}
        if unknown := [name for name, keys in matches.items() if not keys]:
            raise InputError(
                f"checkpoint.leave_out names tensors that the file does not contain: {', '.join(unknown[:5])}.",
                hint="Remove these names, or correct them.",
            )
        left = set[str]().union(*matches.values())
        kept = {key: tensor for key, tensor in self.items() if key not in left}
        note = [f"left out {len(left)} of {len(self)} tensors, which checkpoint.leave_out names"] if left else []
        return StateDict(kept, self.versions, [*self.notes, *note])


class _Placeholder:
    """A placeholder for an object that is neither a tensor nor a plain value; the object's code never runs."""

    def __init__(self, *_arguments: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def read_state(path: Path, shown: str = "") -> StateDict:
    """Read a state dict from a safetensors or ``torch.save`` file; detect the format from the file's content.

    `path` may also be a folder that contains weight files, or an index of weight files. Pickles are read with PyTorch's
    restricted unpickler, which creates only tensors and plain containers. Objects of other classes, such as training
    arguments, become placeholders, and their classes are not imported. If a training script saved the state dict inside
    other dicts, only the state dict is returned. Error messages contain `shown` instead of the path.

    Raises
    ------
    InputError
        The file is damaged, does not contain a state dict, or would run code when loaded.
    """
    shown = shown or str(path)
    files = weight_files(path) or [path]
    contents = [_read_file(file, shown if len(files) == 1 else str(file)) for file in files]
    loaded, classes = contents[0][0], [name for _, names in contents for name in names]
    if len(contents) > 1:
        loaded = {key: item for part, _ in contents if isinstance(part, Mapping) for key, item in part.items()}
    state = _find(loaded)
    if state is None:
        if classes:
            raise _refusal(shown, classes)
        content = f"an object of type {type(loaded).__name__}"
        if isinstance(loaded, Mapping):
            content = f"a dict with the keys {list(loaded)[:5]}"
        raise InputError(
            f"{shown} contains {content}, not a state dict.",
            hint="Save a dict that maps parameter names to tensors.",
        )
    if classes:
        state.notes = (f"left out objects of {_listed(classes)}", *state.notes)
    if unusual := [
        key
        for key, tensor in state.items()
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta
    ]:
        raise InputError(
            f"{shown} contains tensors that are sparse, nested, quantized or without values: {', '.join(unusual[:5])}.",
            hint="Save dense floating-point tensors.",
        )
    # Check sizes before the first copy, because a tensor that repeats one stored value can have any size.
    if repeated := [key for key, tensor in state.items() if tensor.nbytes > tensor.untyped_storage().nbytes()]:
        raise InputError(
            f"These tensors in {shown} have more values than the file contains: {', '.join(repeated[:5])}.",
            hint="Call contiguous() on each tensor before you save the file.",
        )
    return state


def _read_file(path: Path, shown: str) -> tuple[object, list[str]]:
    """Return a file's content, and the names of the classes whose objects became placeholders."""
    classes: list[str] = []
    try:
        # Pass a stream, because torch would derive the format from a path's suffix.
        with path.open("rb") as stream:
            start = stream.read(9)
            # A safetensors file starts with the length of its JSON header; the header starts with a brace.
            is_safetensors = start[8:] == b"{" and int.from_bytes(start[:8], "little") < 100_000_000
            if start.startswith(b"PK") and zipfile.is_zipfile(stream):
                _check_plain_zip(stream)
                stream.seek(0)
                classes = sorted(get_unsafe_globals_in_checkpoint(stream))
            stream.seek(0)
            loaded = load_file(path) if is_safetensors else _load(stream, classes)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))  # torch's message is long, and recommends unsafe loading
        raise _refusal(shown, classes or [name[1] if name else "an operation of the pickle"]) from error
    except Exception as error:  # torch's unpickler can raise any exception for a damaged file
        raise InputError(
            f"{shown} cannot be read as a state dict: {first_line(error)}.",
            hint="Save the state dict again with torch.save(model.state_dict(), path) or safetensors.",
        ) from error
    return loaded, classes


def read_fetched(settings: FetchedCheckpoint, workspace: Workspace) -> StateDict:
    """Read the state dict in the file or files that ``checkpoint.uri`` names.

    Raises
    ------
    InputError
        The file is unavailable, or does not contain a state dict.
    """
    with fetch_weights(settings, workspace) as source:
        return read_state(source.path(), as_shown(settings.uri))


def load_state(checkpoint: CheckpointRef, store: ArtifactStore) -> dict[str, Tensor]:
    """Load a checkpoint's state dict from the store, where floating-point tensors are always float32.

    Raises
    ------
    StoreError
        The checkpoint is missing or damaged.
    """
    state: dict[str, Tensor] = load_file(store.path(checkpoint.kind, checkpoint.digest) / WEIGHTS_FILE)
    return state


def load_checkpoint(model: nn.Module, checkpoint: CheckpointRef, store: ArtifactStore) -> None:
    """Load a checkpoint from the store into its model.

    Stored checkpoints lack module versions, but torchvision's MNASNet refuses a state dict without module versions.
    The versions come from the model, and are correct because stored checkpoints always have the current layout.

    Raises
    ------
    StoreError
        The checkpoint is missing or damaged.
    """
    state = model.state_dict()  # reuse the state dict, because its _metadata contains the module versions
    state.clear()
    state.update(load_state(checkpoint, store))
    model.load_state_dict(state)


def build_blank(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model for inspecting its structure, without allocating memory for the weights if possible.

    `make` builds the model on torch's default device. The state of torch's global generator does not change.
    """
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # noqa: BLE001 - building on the CPU raises the error again, unless meta caused the error
        # A constructor may read tensor values, for example with ``torch.linspace(…).tolist()`` for stochastic depth.
        with torch.random.fork_rng(devices=[]):
            return make()


def _check_plain_zip(stream: IO[bytes]) -> None:
    """Refuse TorchScript programs and compressed zip files.

    A compressed zip file can unpack to any size.
    """
    with zipfile.ZipFile(stream) as archive:
        if any(part.filename.endswith("/constants.pkl") for part in archive.infolist()):
            raise ValueError("the file is a TorchScript program")
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise ValueError("the file is compressed, but torch.save never compresses files")


def _load(stream: IO[bytes], classes: Sequence[str]) -> object:
    """Load a ``torch.save`` file, replacing objects of the named classes with placeholders."""
    if not classes or len(classes) > _MOST_CLASSES:  # allowing many classes is slow, so let torch refuse the file
        return torch.load(stream, map_location="cpu", weights_only=True)
    with _allowing, safe_globals([(_Placeholder, name) for name in classes]):
        return torch.load(stream, map_location="cpu", weights_only=True)


def _find(loaded: object, depth: int = _DEEPEST) -> StateDict | None:
    """Return the largest state dict that `loaded` contains, directly or under nested keys from `_LEVELS`."""
    if not isinstance(loaded, Mapping) or not depth:
        return None
    if loaded and all(isinstance(key, str) and isinstance(item, Tensor) for key, item in loaded.items()):
        averaged = {key: tensor for key, tensor in loaded.items() if key != _AVERAGED}
        if _AVERAGED in loaded and averaged and all(key.startswith("module.") for key in averaged):
            return StateDict(averaged, _versions(loaded), [f'left out "{_AVERAGED}"'])
        return StateDict(loaded, _versions(loaded), [])
    states = [(level, state) for level in _LEVELS if (state := _find(loaded.get(level), depth - 1)) is not None]
    if not states and depth == _DEEPEST:
        # Scripts choose other names too. A single state dict cannot be mistaken for another.
        flat = [(str(level), state) for level in loaded if (state := _find(loaded[level], 1)) is not None]
        states = flat if len(flat) == 1 else []
    if not states:
        return None
    level, state = max(states, key=lambda pair: len(pair[1]))  # among equally large state dicts, take the first
    unused = "".join(f' and not "{other}"' for other, _ in states if other != level)
    state.notes = (f'used the weights under "{level}"{unused}', *state.notes)
    return state


def _refusal(shown: str, classes: Sequence[str]) -> InputError:
    return InputError(
        f"{shown} was refused, because loading the file could run this code: {_listed(classes)}.",
        hint="Save only the model's state_dict(), preferably with safetensors.",
    )


def _listed(classes: Sequence[str]) -> str:
    rest = len(classes) - _MOST_NAMED
    return printable(", ".join(classes[:_MOST_NAMED])) + (f" and {rest} more classes" if rest > 0 else "")


def _versions(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the module versions from a state dict's ``_metadata``; ignore invalid metadata."""
    metadata = getattr(state, "_metadata", None)
    entries = metadata.items() if isinstance(metadata, Mapping) else ()
    versions = {name: entry.get("version") for name, entry in entries if isinstance(entry, Mapping)}
    return {name: version for name, version in versions.items() if isinstance(name, str) and isinstance(version, int)}

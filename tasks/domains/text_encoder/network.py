"""transformers' own classes behind one call: token ids and mask to logits, or to one vector a text."""

from __future__ import annotations

import math
import os
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from storage.errors import ConfigurationError, InputError, first_line
from tasks.data.weight_files import weight_files
from tasks.data.weights import build_blank
from tasks.domains.text_encoder import EncoderDirectory, EncoderSpec
from tasks.libraries import quiet
from tasks.refs import DatasetRef

DEFAULT_LENGTH = 512
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_TYPES = frozenset({"F64", "F32", "F16", "BF16", "I64"})  # I64: buffers of positions in old files


class Encoder(nn.Module):
    """A model of transformers, called with ids and mask alone.

    What it would derive from the length of a call (positions, types of tokens) is given to it: it would cut both out
    of buffers, and no exporter leaves the length of a text open then. Models that count positions from the first
    token on, as RoBERTa does, do so themselves.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Literal["classification", "embedding"],
        pooling: Literal["mean", "cls", "max"],
        normalize: bool,
    ) -> None:
        super().__init__()
        if task == "embedding" and getattr(model, "pooler", None) is not None:
            model.register_module("pooler", None)  # a layer for pretraining, which no embedding goes through
        for part in model.modules():
            if hasattr(part, "loss_type"):
                # A tracer reads every property, and this one would warn.
                setattr(part, "loss_type", "ForSequenceClassification")  # noqa: B010 - nn.Module types it as a tensor
        self.model = model
        self.task, self.pooling, self.normalize = task, pooling, normalize
        taken = signature(model.forward).parameters
        self.gives_types = "token_type_ids" in taken
        counts_itself = any(part.padding_idx is not None for part in _positions(model))
        self.gives_positions = "position_ids" in taken and not counts_itself

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """From int64 [B, T] twice (mask 1 for tokens, 0 for padding) to float32: logits [B, K], or vectors [B, H]."""
        further: dict[str, Tensor] = {}
        if self.gives_types:
            further["token_type_ids"] = torch.zeros_like(input_ids)
        if self.gives_positions:
            further["position_ids"] = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **further)
        if self.task == "classification":
            logits: Tensor = output.logits
            return logits
        hidden: Tensor = output.last_hidden_state
        vectors = self._pool(hidden, attention_mask.unsqueeze(-1).to(hidden.dtype))
        return nn.functional.normalize(vectors, dim=1) if self.normalize else vectors

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        # As sentence-transformers' Pooling does.
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "max":
            return (hidden + (mask - 1) * 1e9).amax(1)
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def build_encoder(spec: EncoderSpec, dataset: DatasetRef | None = None) -> Encoder:
    """Build the network of a section, its weights drawn from torch's global generator.

    Attention is torch's ``scaled_dot_product_attention`` where transformers has it for the architecture, else plain
    products: both export to every runtime, and the first is faster (docs/measured-runtimes.md has numbers).

    Raises
    ------
    ConfigurationError
        transformers has no such architecture, or cannot make it of this configuration.
    """
    library = transformers()
    document = dict(spec.config)
    kind = str(document.pop("model_type"))
    if kind not in library.CONFIG_MAPPING:
        raise ConfigurationError(
            f'transformers {library.__version__} has no architecture "{kind}" of its own.',
            hint="Code that comes with a model is never run: use an architecture that transformers has.",
        )
    if spec.kind == "config" and dataset is not None:
        document.setdefault("vocab_size", dataset.vocabulary)
        if spec.task == "classification" and "id2label" not in document:
            document["num_labels"] = dataset.classes
    auto = library.AutoModelForSequenceClassification if spec.task == "classification" else library.AutoModel
    try:
        with quiet():
            model = auto.from_config(library.CONFIG_MAPPING[kind].from_dict(document), trust_remote_code=False)
    except Exception as error:  # whatever a constructor makes of a wrong configuration
        raise ConfigurationError(
            f'transformers cannot make a model for {spec.task} of model.config, model_type "{kind}": '
            f"{first_line(error)}.",
            hint="Correct config.json.",
        ) from error
    return Encoder(model.float(), spec.task, spec.pooling, spec.normalize).eval()


def read_directory(spec: EncoderDirectory) -> dict[str, Tensor]:
    """The state dict of a directory's weights, loaded by transformers, which knows what older files call them.

    Raises
    ------
    InputError
        The weights are missing, pickled, broken, or not those of the configuration.
    """
    folder = Path(spec.path)
    files = directory_files(folder)
    blank = build_blank(lambda: build_encoder(spec))
    _check_weights(files, sum(parameter.numel() for parameter in blank.parameters()))
    library = transformers()
    auto = library.AutoModelForSequenceClassification if spec.task == "classification" else library.AutoModel
    try:
        with torch.random.fork_rng(devices=[]), quiet():
            model, found = auto.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except Exception as error:  # whatever loading meets in a file from elsewhere
        raise InputError(f"{folder}: transformers cannot load it: {first_line(error)}.") from error
    encoder = Encoder(model, spec.task, spec.pooling, spec.normalize)
    needed = {name.removeprefix("model.") for name in encoder.state_dict()}
    lacking = sorted({*found["missing_keys"], *(str(entry[0]) for entry in found["mismatched_keys"])} & needed)
    if lacking:
        shown = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        raise InputError(
            f"{folder}: its weights lack what config.json describes, or have it in another shape: {shown}.",
            hint="A classifier needs its head: save the model after it was trained.",
        )
    return encoder.state_dict()


def longest_text(model: nn.Module) -> int:
    """Return the most tokens that a model has positions for; 512 if its positions are relative."""
    found = [
        part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1) for part in _positions(model)
    ]
    return min(found) if found else DEFAULT_LENGTH


def transformers() -> Any:  # its classes are looked up by name, and have no types that a checker could follow
    """Import the library, after telling it that nothing is to be downloaded."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers as library

    return library


def _positions(model: nn.Module) -> list[nn.Embedding]:
    return [
        part
        for name, part in model.named_modules()
        if isinstance(part, nn.Embedding) and name.endswith(("position_embeddings", "embed_positions"))
    ]


def directory_files(folder: Path) -> list[Path]:
    """Return the safetensors files that hold the weights: one, or those that an index names.

    Raises
    ------
    InputError
        There are none; pickles (``pytorch_model.bin``) are refused.
    """
    if files := weight_files(folder):
        return files
    if pickles := [name for name in _PICKLES if (folder / name).is_file()]:
        raise InputError(
            f"{folder}: its weights are a pickle ({pickles[0]}), which is never loaded.",
            hint="Save it again with transformers: model.save_pretrained(folder), which writes safetensors.",
        )
    raise InputError(
        f"{folder}: holds no model.safetensors.", hint="Save the model there: model.save_pretrained(folder)."
    )


def _check_weights(files: list[Path], parameters: int) -> None:
    """Refuse files that are broken, hold no floating-point weights, or fewer values than the model's `parameters`."""
    values, wrong = 0, []
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - it is no mapping
                    tensor = file.get_slice(key)
                    values += math.prod(tensor.get_shape())
                    if tensor.get_dtype() not in _TYPES:
                        wrong.append(f"{key} ({tensor.get_dtype()})")
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: cannot be read as safetensors: {first_line(error)}.") from error
    if wrong:
        raise InputError(
            f"{files[0].parent}: weights of types that no float model has: {', '.join(wrong[:5])}.",
            hint="Bring the float model, not one that is quantized already.",
        )
    if values < parameters:
        raise InputError(
            f"{files[0].parent}: config.json describes a model of {parameters:,} parameters, and the files hold "
            f"{values:,} values.",
            hint="Is the model saved whole? A classifier needs its head: save it after it was trained.",
        )

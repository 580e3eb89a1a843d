"""transformers' own classes behind one call: token ids and mask to logits, or to one vector a text."""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from storage.errors import ConfigurationError, InputError, first_line
from tasks.data.weights import build_blank
from tasks.domains.text_encoder.directory import check_weights, weight_files
from tasks.libraries import quiet

if TYPE_CHECKING:
    from tasks.domains.text_encoder import EncoderDirectory, EncoderSpec
    from tasks.refs import DatasetRef

DEFAULT_LENGTH = 512


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
        self.gives_positions = "position_ids" in taken and not _counts_from_padding(model)

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
        """One vector a text, as sentence-transformers' Pooling does."""
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "max":
            return (hidden + (mask - 1) * 1e9).amax(1)
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def build_encoder(spec: EncoderSpec, dataset: DatasetRef | None = None) -> Encoder:
    """Build the network of a section, its weights drawn from torch's global generator.

    Attention is torch's ``scaled_dot_product_attention`` where transformers has it for the architecture, else plain
    products: both export to every runtime, and the first is faster (docs/text-encoder.md has numbers).

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
    files = weight_files(folder)
    blank = build_blank(lambda: build_encoder(spec))
    check_weights(files, sum(parameter.numel() for parameter in blank.parameters()))
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
    """The most tokens that a model has positions for; 512 for one whose positions are relative."""
    found = [part.num_embeddings - _first_position(part) for part in _positions(model)]
    return min(found) if found else DEFAULT_LENGTH


def transformers() -> ModuleType:
    """The library, which is told before it is imported that nothing is to be downloaded."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Its classes are looked up by name, and have no types that a checker could follow: Any.
    import transformers as library

    module: Any = library
    return module  # type: ignore[no-any-return]


def _positions(model: nn.Module) -> list[nn.Embedding]:
    return [
        part
        for name, part in model.named_modules()
        if isinstance(part, nn.Embedding) and name.endswith(("position_embeddings", "embed_positions"))
    ]


def _first_position(table: nn.Embedding) -> int:
    return 0 if table.padding_idx is None else table.padding_idx + 1


def _counts_from_padding(model: nn.Module) -> bool:
    return any(table.padding_idx is not None for table in _positions(model))

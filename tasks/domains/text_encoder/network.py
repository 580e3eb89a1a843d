"""Networks that use transformers' classes to compute logits, or one vector per text, from token ids and a mask."""

from __future__ import annotations

import os
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import ConfigurationError, InputError
from tasks.data.samples import shortened
from tasks.domains.text_encoder import EncoderDirectory, EncoderSpec, Pooling, Task
from tasks.environment.libraries import quiet, reported_as
from tasks.environment.user_code import in_its_own_words
from tasks.values.refs import DatasetRef

DEFAULT_LENGTH = 512


class Encoder(nn.Module):
    """A transformers model that is called with only token ids and a mask.

    `forward` passes positions and token types; an exported model that slices its own accepts only one text length.
    """

    def __init__(self, model: nn.Module, task: Task, pooling: Pooling, normalize: bool) -> None:
        super().__init__()
        if task == "embedding" and getattr(model, "pooler", None) is not None:
            model.register_module("pooler", None)  # the pooler is only for pretraining; embeddings do not need it
        for part in model.modules():
            if hasattr(part, "loss_type"):
                # Tracers read every property, and transformers warns about the default value of ``loss_type``.
                setattr(part, "loss_type", "ForSequenceClassification")  # noqa: B010 - nn.Module types it as a tensor
        self.model = model
        self.task, self.pooling, self.normalize = task, pooling, normalize
        parameters = signature(model.forward).parameters
        self.passes_types = "token_type_ids" in parameters
        computes_positions = any(part.padding_idx is not None for part in _positions(model))
        self.passes_positions = "position_ids" in parameters and not computes_positions

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits, float32 [B, K], or vectors, float32 [B, H], for ids and a mask, int64 [B, T]."""
        optional: dict[str, Tensor] = {}
        if self.passes_types:
            optional["token_type_ids"] = torch.zeros_like(input_ids)
        if self.passes_positions:
            optional["position_ids"] = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **optional)
        if self.task == "classification":
            logits: Tensor = output.logits
            return logits
        hidden: Tensor = output.last_hidden_state
        vectors = self._pool(hidden, attention_mask.unsqueeze(-1).to(hidden.dtype))
        return nn.functional.normalize(vectors, dim=1) if self.normalize else vectors

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        # The formulas match the Pooling module of sentence-transformers.
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "max":
            return (hidden + (mask - 1) * 1e9).amax(1)
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def build_encoder(spec: EncoderSpec, dataset: DatasetRef | None = None) -> Encoder:
    """Build the network that a model section describes, with random weights from torch's global generator."""
    library = transformers()
    document = dict(spec.config)
    kind = str(document.pop("model_type", ""))
    if kind not in library.CONFIG_MAPPING:
        raise ConfigurationError(
            f'transformers {library.__version__} does not include the architecture (model_type) "{kind}".',
            hint="nightquant never runs code from a model directory; use an architecture that transformers includes.",
        )
    if spec.kind == "config" and dataset is not None:
        document.setdefault("vocab_size", dataset.vocabulary)
        if spec.task == "classification" and "id2label" not in document:
            document["num_labels"] = dataset.classes
    failed = f'transformers cannot build a model for {spec.task} from model.config with model_type "{kind}"'
    with in_its_own_words(failed, "Correct the model's configuration."), quiet():
        model = _auto(spec).from_config(library.CONFIG_MAPPING[kind].from_dict(document), trust_remote_code=False)
    return Encoder(model.float(), spec.task, spec.pooling, spec.normalize).eval()


def read_directory(spec: EncoderDirectory) -> dict[str, Tensor]:
    """Load a model's state dict with the transformers library, which recognizes the key names in older files."""
    readable = reported_as(f"transformers cannot load {spec.path}", "Save the model again with save_pretrained.")
    with readable, torch.random.fork_rng(devices=[]), quiet():
        model, loading = _auto(spec).from_pretrained(
            spec.path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    encoder = Encoder(model, spec.task, spec.pooling, spec.normalize)
    needed = {name.removeprefix("model.") for name in encoder.state_dict()}
    lacking = sorted({*loading["missing_keys"], *(str(entry[0]) for entry in loading["mismatched_keys"])} & needed)
    if lacking:
        raise InputError(
            f"These weights are missing from {spec.path} or do not match the shapes in config.json: "
            f"{', '.join(shortened(lacking))}.",
            hint="Save the complete model again. If the classifier head is missing, train the model first.",
        )
    return encoder.state_dict()


def longest_text(model: nn.Module) -> int:
    """Return a model's number of positions, or 512 if the positions are relative."""
    limits = [
        part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1) for part in _positions(model)
    ]
    return min(limits) if limits else DEFAULT_LENGTH


def transformers() -> Any:  # library classes are looked up by name, so static types are unavailable
    """Import transformers with downloads disabled."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers as library

    return library


def _auto(spec: EncoderSpec) -> Any:
    library = transformers()
    return library.AutoModelForSequenceClassification if spec.task == "classification" else library.AutoModel


def _positions(model: nn.Module) -> list[nn.Embedding]:
    return [
        part
        for name, part in model.named_modules()
        if isinstance(part, nn.Embedding) and name.endswith(("position_embeddings", "embed_positions"))
    ]

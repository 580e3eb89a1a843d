"""The LSTM word language model: Embedding, dropout, LSTM layers, dropout, Linear to the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from tasks.domains.language_model import WordLanguageModelSpec
    from tasks.refs import DatasetRef

_INITIAL_RANGE = 0.1


class WordLanguageModel(nn.Module):
    """Predicts each next word of a text.

    The names of the submodules (``encoder``, ``rnn``, ``decoder``) are those of the PyTorch tutorial "Dynamic
    Quantization on an LSTM Word Language Model", so that its checkpoints load as they are. V is the size of the
    vocabulary, H the width and L the depth of the LSTM; `dropout` is the share of activations dropped in training.
    """

    def __init__(self, vocabulary: int, embedding_size: int, hidden_size: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, embedding_size)
        # A single layer has nothing to drop between layers, and torch warns where it is asked to.
        self.rnn = nn.LSTM(embedding_size, hidden_size, layers, dropout=dropout if layers > 1 else 0.0)
        self.decoder = nn.Linear(hidden_size, vocabulary)
        nn.init.uniform_(self.encoder.weight, -_INITIAL_RANGE, _INITIAL_RANGE)
        nn.init.uniform_(self.decoder.weight, -_INITIAL_RANGE, _INITIAL_RANGE)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From tokens, int64 [T, B], and the state h, c, float32 [L, B, H], to logits of each next word and the state.

        The logits are float32 [T, B, V].
        """
        embedded = self.drop(self.encoder(tokens))
        output, (h, c) = self.rnn(embedded, (h, c))
        return self.decoder(self.drop(output)), h, c


def build_word_lm(spec: WordLanguageModelSpec, dataset: DatasetRef) -> WordLanguageModel:
    """Build the network of `spec` for the data set's vocabulary."""
    return WordLanguageModel(dataset.vocabulary, spec.embedding_size, spec.hidden_size, spec.layers, spec.dropout)


def zero_state(spec: WordLanguageModelSpec, columns: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """The state before any word: two float32 zeros [L, B, H]."""
    shape = (spec.layers, columns, spec.hidden_size)
    return torch.zeros(shape, device=device), torch.zeros(shape, device=device)

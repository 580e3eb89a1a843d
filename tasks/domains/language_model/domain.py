"""The ``language-model`` domain: an LSTM on text, trained with truncated backpropagation through time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from storage.artifacts import ArtifactStore
from storage.errors import InputError, MeasurementError
from tasks.data.corpus import load_vocabulary, prepare_pydoc, prepare_text
from tasks.data.evaluation import Quality, perplexity_metric
from tasks.data.metrics import unigram_loss
from tasks.data.samples import load_samples
from tasks.data.sections import TextCorpus
from tasks.data.training import Training, train
from tasks.domains.base import Axes, Domain
from tasks.domains.language_model import LanguageModelWorkload, TrainedCheckpoint, WordLanguageModelSpec
from tasks.domains.language_model.stream import word_losses
from tasks.job import Job, Workspace
from tasks.outputs import Call
from tasks.refs import DatasetRef

VOCABULARY = "vocabulary.json"
_INITIAL_RANGE = 0.1
_VALID_COLUMNS = 10


class WordLanguageModel(nn.Module):
    """A next-word model: an Embedding layer, dropout, LSTM layers, dropout, and a Linear layer."""

    def __init__(self, vocabulary: int, embedding_size: int, hidden_size: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, embedding_size)
        # torch applies dropout between layers, and warns if dropout is set for a single layer.
        self.rnn = nn.LSTM(embedding_size, hidden_size, layers, dropout=dropout if layers > 1 else 0.0)
        self.decoder = nn.Linear(hidden_size, vocabulary)
        nn.init.uniform_(self.encoder.weight, -_INITIAL_RANGE, _INITIAL_RANGE)
        nn.init.uniform_(self.decoder.weight, -_INITIAL_RANGE, _INITIAL_RANGE)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits for the next words, float32 [T, B, V], and the new state.

        Tokens are int64 [T, B]; the states h and c are float32 [L, B, H].
        """
        embedded = self.drop(self.encoder(tokens))
        output, (h, c) = self.rnn(embedded, (h, c))
        return self.decoder(self.drop(output)), h, c


class LanguageModel(Domain[LanguageModelWorkload, WordLanguageModelSpec]):
    """The domain ``language-model``."""

    outputs = ("logits", "h", "c")
    open_axes: ClassVar[Axes] = {"tokens": {0: "time", 1: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}}

    def prepare(self, workload: LanguageModelWorkload, workspace: Workspace) -> DatasetRef:
        """Tokenize the corpus."""
        data = workload.data
        return prepare_text(data, workspace) if isinstance(data, TextCorpus) else prepare_pydoc(data, workspace)

    def build(self, model: WordLanguageModelSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network for the vocabulary of the corpus."""
        return WordLanguageModel(
            dataset.vocabulary, model.embedding_size, model.hidden_size, model.layers, model.dropout
        )

    def example_inputs(
        self, workload: LanguageModelWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return columns of ``benchmark.sequence_length`` words from the test split, and the initial state."""
        ids = load_samples(dataset, "test", store)["tokens"]
        length = workload.benchmark.sequence_length
        positions = torch.arange(length * batch_size) % len(ids)
        h, c = zero_state(workload.model, batch_size)
        return {"tokens": ids[positions].long().view(batch_size, length).t().contiguous(), "h": h, "c": c}

    def evaluate(
        self, job: Job[LanguageModelWorkload], call: Call, workspace: Workspace, *, apart: bool = False
    ) -> Quality:
        """Compute loss and perplexity on the test split.

        If `apart` is true, each call reads ``benchmark.sequence_length`` words of one stream, as in the benchmark.
        """
        ids = load_samples(job.dataset, "test", workspace.store)["tokens"]
        settings, words = job.workload.evaluate, job.workload.benchmark.sequence_length if apart else None
        losses = word_losses(call, ids, job.workload.model, settings, workspace.progress, words_in_call=words)
        loss = losses.mean(dtype=torch.float64).item()
        if not math.isfinite(loss):
            raise MeasurementError(
                f"the model's loss is {loss}, not a finite number.",
                hint="Check whether the float model's outputs are finite.",
            )
        return Quality(
            metric="loss",
            value=loss,
            higher_is_better=False,
            metrics={"loss": loss, **perplexity_metric(loss)},
            samples={"quality": losses},
            count=len(losses),
            mode=f"{settings.mode}, rows apart" if apart else settings.mode,
            contributions="serial",
            constant=unigram_loss([ids[1:]], job.dataset.vocabulary),
        )

    def train(self, workload: LanguageModelWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train with Adam and truncated backpropagation; return the weights with the lowest validation loss."""
        settings = cast("TrainedCheckpoint", workload.checkpoint)
        spec, length = workload.model, settings.sequence_length

        def make(device: torch.device) -> Training:
            model = self.build(spec, dataset).to(device)
            train_data, valid_data = (
                batchify(load_samples(dataset, split, workspace.store)["tokens"], columns).to(device)
                for split, columns in (("train", settings.batch_size), ("valid", _VALID_COLUMNS))
            )
            optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
            steps = settings.epochs * -(-(len(train_data) - 1) // length)

            def losses(data: Tensor) -> Iterator[tuple[int, Tensor]]:
                return _losses(model, data, length, zero_state(spec, data.shape[1], device))

            def epoch() -> Iterator[tuple[float, Tensor]]:
                for stop, loss in losses(train_data):
                    yield min(1.0, (stop + 1) / len(train_data)), loss

            @torch.no_grad()
            def validate() -> float:
                model.eval()
                total, start = 0.0, 0
                for stop, loss in losses(valid_data):
                    total, start = total + loss.item() * (stop - start), stop
                return total / (len(valid_data) - 1)

            return Training(
                model,
                optimizer,
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
                epoch,
                largest_gradient=settings.gradient_clip,
                validate=validate,
                hopeless=2 * math.log(max(2, dataset.vocabulary)),  # twice the loss of a uniform prediction
            )

        return train(make, settings, workload.name, workspace.progress)

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Return the range of allowed word ids; a lookup of a larger id would read beyond the end of the embedding."""
        return {"tokens": (0, dataset.vocabulary - 1)}

    def write_resources(self, job: Job[LanguageModelWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write the words, ordered by id, as a JSON array with one word per line."""
        words = ",\n".join(json.dumps(word) for word in load_vocabulary(job.dataset, store))
        (folder / VOCABULARY).write_text(f"[\n{words}\n]\n", encoding="ascii")
        return {"vocabulary": VOCABULARY}


def zero_state(spec: WordLanguageModelSpec, columns: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return the initial state: two float32 tensors of zeros, [L, B, H]."""
    shape = (spec.layers, columns, spec.hidden_size)
    return torch.zeros(shape, device=device), torch.zeros(shape, device=device)


def batchify(ids: Tensor, columns: int) -> Tensor:
    """Split a stream of integers, [N], into parallel columns, int64 [N // columns, columns]; drop surplus words."""
    length = len(ids) // columns
    if length < 2:
        raise InputError(
            f"The split has {len(ids)} words, but {columns} parallel streams need at least {2 * columns} words.",
            hint="Provide more text, or set a smaller checkpoint.batch_size.",
        )
    return ids[: length * columns].long().view(columns, length).t().contiguous()


def _losses(model: nn.Module, data: Tensor, length: int, state: tuple[Tensor, Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Yield (rows finished so far, mean loss) for each chunk of `data`; detach the state between chunks."""
    for start in range(0, len(data) - 1, length):
        stop = min(start + length, len(data) - 1)
        logits, h, c = model(data[start:stop], *state)
        yield stop, F.cross_entropy(logits.flatten(0, 1), data[start + 1 : stop + 1].flatten())
        state = h.detach(), c.detach()

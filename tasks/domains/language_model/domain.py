"""The ``language-model`` domain: an LSTM on text, trained with truncated backpropagation through time.

In evaluation, the ``exact`` mode follows a tutorial, "Dynamic Quantization on an LSTM Word Language Model". The
``segments`` mode processes segments of the stream in parallel. An LSTM gradually forgets its initial state, so the
model first reads a few words that precede a segment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from tasks.data.corpus import load_vocabulary, prepare_pydoc, prepare_text
from tasks.data.evaluation import Quality, as_quality, perplexity_metric
from tasks.data.metrics import METRICS, unigram_loss
from tasks.data.outputs import Call, intra_op_threads, tensors_of
from tasks.data.samples import load_samples
from tasks.data.scores import Scored
from tasks.data.sections import TextCorpus
from tasks.data.training import Training, train
from tasks.domains.base import Axes, Domain
from tasks.domains.language_model import Evaluate, LanguageModelWorkload, TrainedCheckpoint, WordLanguageModelSpec
from tasks.values.job import Job, Progress, Workspace, silent
from tasks.values.refs import DatasetRef

VOCABULARY = "vocabulary.json"
_INITIAL_RANGE = 0.1
_VALID_COLUMNS = 10
# Number of segments (columns) per lane, and number of logit rows per call: wide enough for fast matrix products, with
# enough lanes for the cores, and logits that stay in the cache until the loss is computed.
_COLUMNS, _ROWS = 8, 128


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
        """Return logits for the words after `tokens`, float32 [T, B, V], and the new states, float32 [L, B, H]."""
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
        sizes = model.embedding_size, model.hidden_size, model.layers
        return WordLanguageModel(dataset.vocabulary, *sizes, model.dropout)

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
        self, job: Job[LanguageModelWorkload], call: Call, workspace: Workspace, *, singly: bool = False
    ) -> Quality:
        """Compute loss and perplexity; if `singly` is true, each call reads one stream, as in the benchmark."""
        ids = load_samples(job.dataset, "test", workspace.store)["tokens"]
        settings, words = job.workload.evaluate, job.workload.benchmark.sequence_length if singly else None
        losses = word_losses(call, ids, job.workload.model, settings, workspace.progress, words_in_call=words)
        loss = losses.mean(dtype=torch.float64).item()
        quality = as_quality(
            METRICS["loss"],
            {"loss": Scored(loss, {"quality": losses}, "serial")},
            len(losses),
            singly=singly,
            constant=unigram_loss([ids[1:]], job.dataset.vocabulary),
        )
        mode = f"{settings.mode}, rows apart" if singly else settings.mode
        return replace(quality, mode=mode, metrics=quality.metrics | perplexity_metric(loss))

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
            optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)
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


def word_losses(
    call: Call,
    ids: Tensor,
    spec: WordLanguageModelSpec,
    settings: Evaluate,
    progress: Progress = silent,
    *,
    words_in_call: int | None = None,
) -> Tensor:
    """Compute the loss in nats of every word but the first, float32 [N - 1], in the mode that `settings` selects."""
    if len(ids) < 2:
        raise InputError("The test split has fewer than two words.", hint="Provide a longer test.txt.")
    segments, warm_up, columns, rows = settings.segments, settings.warm_up, _COLUMNS, _ROWS
    if settings.mode == "exact":
        segments, warm_up, columns, rows = 1, 0, 1, settings.sequence_length
    if words_in_call is not None:
        columns, rows = 1, words_in_call
    with torch.inference_mode():
        return segment_losses(call, ids, spec, segments, warm_up, progress, columns=columns, rows=rows)


def segment_losses(
    call: Call,
    ids: Tensor,
    spec: WordLanguageModelSpec,
    segments: int,
    warm_up: int,
    progress: Progress = silent,
    *,
    columns: int = _COLUMNS,
    rows: int = _ROWS,
) -> Tensor:
    """Compute the losses of a stream's words in segments, in lanes that do not depend on the number of cores.

    Use fewer segments to keep them at least `warm_up` words long.
    """
    words = len(ids) - 1
    count = max(1, min(segments, words // max(warm_up, 1)))
    length = -(-words // count)
    count = -(-words // length)
    # Pad the last segment with zeros if necessary, and drop the losses of the padding.
    padded = torch.zeros(count * length + 1, dtype=ids.dtype)
    padded[: words + 1] = ids
    lanes = [
        _Lane(call, padded, spec, warm_up, length, first, min(first + columns, count), rows)
        for first in range(0, count, columns)
    ]
    return torch.cat(_run_lanes(lanes, words, progress))[:words]


@dataclass(frozen=True)
class _Lane:
    """Consecutive segments, from `first` to `last` (exclusive), of a stream padded to a multiple of `length`."""

    call: Call
    padded: Tensor
    spec: WordLanguageModelSpec
    warm_up: int
    length: int
    first: int
    last: int
    rows: int

    def losses(self, progress: Callable[[float], None]) -> Tensor:
        """Return losses in stream order; report the finished fraction to `progress`."""
        count, steps = self.last - self.first, max(1, self.rows // (self.last - self.first))
        inputs, targets = self._columns(0), self._columns(1)
        h, c = self._warm_state(steps)
        losses = torch.empty(self.length, count)
        for start in range(0, self.length, steps):
            stop = min(start + steps, self.length)
            # Quantized embeddings require contiguous indices.
            logits, h, c = tensors_of(self.call(inputs[start:stop].long().contiguous(), h, c))
            target = targets[start:stop].long().flatten()
            losses[start:stop] = F.cross_entropy(logits.flatten(0, 1), target, reduction="none").view(-1, count)
            progress(stop / self.length)
        return losses.t().flatten()

    def _columns(self, offset: int) -> Tensor:
        span = self.padded[self.first * self.length + offset : self.last * self.length + offset]
        return span.view(-1, self.length).t()

    def _warm_state(self, steps: int) -> tuple[Tensor, Tensor]:
        """Return the state at the start of each segment, [L, segments, H]; the stream starts with a zero state."""
        starts = torch.arange(max(self.first, 1), self.last) * self.length
        h, c = zero_state(self.spec, len(starts))
        warm_up_words = self.padded[starts + torch.arange(-self.warm_up, 0).unsqueeze(1)]
        for start in range(0, self.warm_up if len(starts) else 0, steps):
            _, h, c = tensors_of(self.call(warm_up_words[start : start + steps].long(), h, c))
        if self.first == 0:
            zero, _ = zero_state(self.spec, 1)
            h, c = torch.cat([zero, h], dim=1), torch.cat([zero, c], dim=1)
        return h, c


def _run_lanes(lanes: Sequence[_Lane], words: int, progress: Progress) -> list[Tensor]:
    """Return each lane's losses, in order; report the progress of the first lane, which runs in the calling thread."""
    cores = torch.get_num_threads()
    workers = min(len(lanes), cores)

    def report(share: float) -> None:
        progress(share * words, words, "words")

    def run(worker: int) -> list[Tensor]:
        # Inference mode applies only to the thread that enables it.
        with torch.inference_mode():
            return [lane.losses(report if lane.first == 0 else lambda share: None) for lane in lanes[worker::workers]]

    with intra_op_threads(max(1, cores // workers)), ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, worker) for worker in range(1, workers)]
        by_worker = [run(0), *(future.result() for future in futures)]
    return [by_worker[index % workers][index // workers] for index in range(len(lanes))]

"""The ``text-encoder`` domain: tokenized texts are batched by length and padded."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from storage.artifacts import ArtifactStore
from storage.digest import file_digest
from tasks.data.evaluation import Quality, as_quality, evaluate_batches, outputs_in_order
from tasks.data.metrics import METRICS
from tasks.data.outputs import Call
from tasks.data.samples import TARGET, Batch, Column, load_samples, read_description
from tasks.data.scores import BatchResults, Score
from tasks.data.training import Training, train
from tasks.data.weights import DIRECTORY_WEIGHTS, build_blank, load_checkpoint
from tasks.domains.base import Axes, Domain, Weights, write_preprocessing
from tasks.domains.text_encoder import EncoderDirectory, EncoderSpec, EncoderWorkload
from tasks.domains.text_encoder.network import build_encoder, longest_text, read_directory
from tasks.domains.text_encoder.prepare import PAIRS, TOKENIZER, prepare_texts
from tasks.environment.libraries import reported_as
from tasks.environment.machine import installed_version
from tasks.environment.sources import code_digest
from tasks.values.job import Job, Workspace
from tasks.values.refs import DatasetRef
from tasks.values.results import Proposal
from tasks.workload.base import TrainedCheckpoint

_SHORTEST_BUCKET = 16  # number of tokens in the shortest bucket; each further bucket doubles the length
_WARM_UP = 0.1
_GRADIENT = 1.0
_ALSO = {"accuracy": {"f1-macro": "f1-macro"}, "f1-macro": {"accuracy": "accuracy"}}
_AXES = {0: "batch", 1: "tokens"}


@dataclass(frozen=True)
class Texts:
    """The tokenized texts of a split, with the padding id and the class numbers, int64 [N]."""

    ids: Column
    padding: int
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def padded(self, rows: Sequence[int], length: int | None = None) -> tuple[Tensor, Tensor]:
        """Return ids and a mask, int64 [B, T], for the texts in `rows`, padded to `length` or to the longest text."""
        texts = [self.ids[row] for row in rows]
        width = length or max(map(len, texts))
        ids = torch.full((len(texts), width), self.padding)
        mask = torch.zeros((len(texts), width), dtype=torch.int64)
        for place, text in enumerate(texts):
            ids[place, : len(text)] = text
            mask[place, : len(text)] = 1
        return ids, mask

    def batches(self, batch_size: int, *, singly: bool = False) -> Iterator[Batch]:
        """Yield batches of similar-length texts and their classes; if `singly` is true, yield single unpadded texts."""
        groups = (([row], None) for row in range(len(self))) if singly else self.buckets(batch_size)
        for rows, length in groups:
            yield Batch(self.padded(rows, length), None if self.labels is None else self.labels[rows], len(rows), rows)

    def buckets(self, batch_size: int) -> Iterator[tuple[list[int], int]]:
        """Yield each batch's rows and padded length, in order of padded length."""
        lengths = [len(self.ids[row]) for row in range(len(self))]
        longest = max(lengths)
        by_bucket: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            by_bucket.setdefault(bucket_of(length, longest), []).append(row)
        for padded, rows in sorted(by_bucket.items()):
            for start in range(0, len(rows), batch_size):
                yield rows[start : start + batch_size], padded


def bucket_of(length: int, longest: int) -> int:
    """Return the padded length of a text: 16, 32, 64, …, but at most the length of the longest text."""
    bucket = _SHORTEST_BUCKET
    while bucket < length:
        bucket *= 2
    return max(min(bucket, longest), length)


def load_texts(dataset: DatasetRef, split: str, store: ArtifactStore, column: str = "input_ids") -> Texts:
    """Read a split's texts, or the paired texts from another column."""
    samples = load_samples(dataset, split, store)
    labels = samples[TARGET] if TARGET in samples.columns else None
    return Texts(samples.columns[column], samples.description.padding, labels)


class TextEncoder(Domain[EncoderWorkload, EncoderSpec]):
    """The domain ``text-encoder``."""

    open_axes: ClassVar[Axes] = {"input_ids": _AXES, "attention_mask": _AXES}
    usage = """\
{% set tensor = "numpy.array" if m.model.runtime in ("onnxruntime", "openvino") else "torch.tensor" %}
{% set batch, length = m.model.inputs[0].shape %}
import {{ tensor.partition(".")[0] }}
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("tokenizer.json")  # cuts texts at the model's limit, and pads to the longest text
{% if m.model.runtime == "openvino" %}
tokenizer.enable_truncation({{ length }})  # the model is reshaped to this length below; otherwise, any length works
tokenizer.enable_padding(**tokenizer.padding | {"length": {{ length }}})
{% endif %}
rows = tokenizer.encode_batch(["a text"] * {{ batch }})
input_ids, attention_mask = {{ tensor }}([row.ids for row in rows]), {{ tensor }}([row.attention_mask for row in rows])

"""

    def prepare(self, workload: EncoderWorkload, workspace: Workspace) -> DatasetRef:
        """Tokenize the texts."""
        return prepare_texts(workload, workspace)

    def build(self, model: EncoderSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network from its configuration."""
        return build_encoder(model, dataset)

    def example_inputs(
        self, workload: EncoderWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return rows of ``benchmark.sequence_length`` tokens from the concatenated test texts, without padding."""
        ids, length = load_texts(dataset, "test", store).ids.values, workload.benchmark.sequence_length
        positions = torch.arange(length * batch_size) % len(ids)
        rows = ids[positions].long().view(batch_size, length)
        return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}

    def metric(self, workload: EncoderWorkload) -> Score:
        """Return ``evaluate.metric``, or the default metric for the task."""
        return METRICS[workload.metric]

    def evaluate(self, job: Job[EncoderWorkload], call: Call, workspace: Workspace, *, singly: bool = False) -> Quality:
        """Compute the task's metrics, including ``evaluate.metric``, on the test split."""
        texts, workload = load_texts(job.dataset, "test", workspace.store), job.workload
        if workload.model.task == "classification":
            quality = evaluate_batches(
                call,
                texts.batches(workload.evaluate.batch_size, singly=singly),
                self.metric(workload),
                total=len(texts),
                singly=singly,
                also=_ALSO[workload.metric],
                classes=job.dataset.classes,
                progress=workspace.progress,
            )
        else:
            quality = self._quality_of_vectors(job, call, texts, workspace, singly=singly)
        cut = read_description(job.dataset, workspace.store).cut
        return replace(quality, metrics=quality.metrics | ({"cut_texts": float(cut)} if cut else {}))

    def _quality_of_vectors(
        self, job: Job[EncoderWorkload], call: Call, texts: Texts, workspace: Workspace, *, singly: bool
    ) -> Quality:
        workload, size = job.workload, job.workload.evaluate.batch_size
        reference = build_encoder(workload.model, job.dataset)
        load_checkpoint(reference, job.checkpoint, workspace.store)

        def embed(model: Call, texts: Texts, *, singly: bool) -> Tensor:
            return outputs_in_order(model, texts.batches(size, singly=singly), len(texts), workspace.progress)

        vectors = embed(call, texts, singly=singly)
        targets = {"cosine": embed(reference, texts, singly=False)}
        if workload.metric == "retrieval":
            pairs = load_texts(job.dataset, "test", workspace.store, PAIRS)
            targets["retrieval"] = embed(call, pairs, singly=singly)
        scored = {
            name: METRICS[name].conclude(BatchResults([METRICS[name].take(vectors, target)]))
            for name, target in targets.items()
        }
        metric = self.metric(workload)
        constant = metric.constant([vectors], 0) if metric.constant else None
        return as_quality(metric, scored, len(texts), singly=singly, constant=constant)

    def calibration(
        self, job: Job[EncoderWorkload], store: ArtifactStore, batch_size: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield batches of the calibration split in stored order, each padded to its longest text."""
        texts = load_texts(job.dataset, "calibration", store)
        rows = range(len(texts))
        return (texts.padded(rows[start : start + batch_size]) for start in range(0, len(texts), batch_size))

    def train(self, workload: EncoderWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train with AdamW; the learning rate rises during the first tenth of the steps and then falls to zero."""
        settings, texts = cast("TrainedCheckpoint", workload.checkpoint), load_texts(dataset, "train", workspace.store)
        labels, order = cast(Tensor, texts.labels), random.Random(settings.seed)

        def make(device: torch.device) -> Training:
            model = build_encoder(workload.model, dataset).to(device)
            batches = [rows for rows, _ in texts.buckets(settings.batch_size)]
            steps = settings.epochs * len(batches)
            warm = max(1, round(_WARM_UP * steps))
            optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, fused=True)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
            )

            def epoch() -> Iterator[tuple[float, Tensor]]:
                order.shuffle(batches)
                for done, rows in enumerate(batches, start=1):
                    ids, mask = (tensor.to(device) for tensor in texts.padded(rows))
                    yield done / len(batches), cross_entropy(model(ids, mask), labels[rows].to(device))

            return Training(model, optimizer, schedule, epoch, largest_gradient=_GRADIENT)

        return train(make, settings, workload.name, workspace.progress)

    def weights(self, workload: EncoderWorkload, dataset: DatasetRef) -> Weights:
        """Return values that identify the weights in the model's directory, and a function that loads the weights."""
        spec = cast("EncoderDirectory", workload.model)
        hint = "Save the model in this folder with transformers: model.save_pretrained(folder)."
        with reported_as(f"{DIRECTORY_WEIGHTS} cannot be read", hint):
            file = file_digest(Path(spec.path, DIRECTORY_WEIGHTS))
        made_from = {
            "file": file,
            "model": spec.model_dump(mode="json"),
            "transformers": installed_version("transformers"),
            "code": code_digest(read_directory.__module__),
        }
        return made_from, lambda: read_directory(spec)

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Return the range of allowed token ids; a lookup of a larger id would read beyond the end of the embedding."""
        return {"input_ids": (0, dataset.vocabulary - 1), "attention_mask": (0, 1)}

    def propose(self, workload: EncoderWorkload, workspace: Workspace) -> Proposal:
        """Propose a shorter sequence for timed calls if the model does not have enough positions."""
        longest = longest_text(build_blank(lambda: build_encoder(workload.model)))
        shorter = longest < workload.benchmark.sequence_length
        return Proposal(sections={"benchmark": {"sequence_length": longest}} if shorter else {})

    def write_resources(self, job: Job[EncoderWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write the tokenizer, and a description of the model's inputs and outputs."""
        shutil.copyfile(store.path(job.dataset.kind, job.dataset.digest) / TOKENIZER, folder / TOKENIZER)
        description = read_description(job.dataset, store)
        document: dict[str, object] = {"max_length": description.max_length, "padding": description.padding}
        if job.workload.model.task == "classification":
            document |= {"outputs": "logits; the largest logit is the class", "labels": description.classes}
        else:
            document |= {"outputs": "one vector per text; texts with similar meanings have a high cosine"}
        return {"tokenizer": TOKENIZER} | write_preprocessing(document, folder)

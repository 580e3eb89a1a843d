"""The domain ``text-encoder``: prepared texts differ in length, and are padded to batches of like length."""

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
from tasks.data.samples import TARGET, Batch, Column, load_samples, read_description
from tasks.data.scores import Kept, Score
from tasks.data.training import Training, train
from tasks.data.weights import build_blank, load_state
from tasks.domains.base import Axes, Domain, Weights, write_preprocessing
from tasks.domains.text_encoder import EncoderDirectory, EncoderSpec, EncoderWorkload, TrainedCheckpoint
from tasks.domains.text_encoder.network import build_encoder, directory_files, longest_text, read_directory
from tasks.domains.text_encoder.prepare import PAIRS, TOKENIZER, prepare_texts
from tasks.job import Job, Workspace
from tasks.machine import installed_version
from tasks.outputs import Call
from tasks.refs import DatasetRef
from tasks.results import Proposal
from tasks.sources import code_digest

_STEP = 16  # lengths are padded to multiples of it, or of what doubles it, up to the longest
_WARM_UP = 0.1
_GRADIENT = 1.0
_ALSO = {"accuracy": {"f1-macro": "f1-macro"}, "f1-macro": {"accuracy": "accuracy"}}
_AXES = {0: "batch", 1: "tokens"}
_USE = (
    "tokenizers.Tokenizer.from_file('tokenizer.json').encode_batch(texts) cuts texts at max_length and pads them: ids "
    "are the rows of input_ids, attention_mask those of attention_mask, both int64"
)


@dataclass(frozen=True)
class Texts:
    """Token ids of a split's texts, the id that pads them, and their classes, int64 [N], if they have any."""

    ids: Column
    padding: int
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def padded(self, rows: Sequence[int], length: int | None = None) -> tuple[Tensor, Tensor]:
        """Return ids and mask, int64 [B, T], of some texts, padded to the longest of them or to `length`."""
        texts = [self.ids[row] for row in rows]
        width = length or max(map(len, texts))
        ids = torch.full((len(texts), width), self.padding)
        mask = torch.zeros((len(texts), width), dtype=torch.int64)
        for place, text in enumerate(texts):
            ids[place, : len(text)] = text
            mask[place, : len(text)] = 1
        return ids, mask

    def batches(self, batch_size: int, *, apart: bool = False) -> Iterator[Batch]:
        """Yield batches of texts of like length with their classes, or one text at a time and no padding."""
        chosen = (([row], None) for row in range(len(self))) if apart else self.buckets(batch_size)
        for rows, length in chosen:
            yield Batch(self.padded(rows, length), None if self.labels is None else self.labels[rows], len(rows), rows)

    def buckets(self, batch_size: int) -> Iterator[tuple[list[int], int]]:
        """Yield rows that run together, and the length that they are padded to; few lengths are compiled for.

        Shortest first; rows of one length keep their order.
        """
        lengths = [len(self.ids[row]) for row in range(len(self))]
        longest = max(lengths)
        by_bucket: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            by_bucket.setdefault(bucket_of(length, longest), []).append(row)
        for padded, rows in sorted(by_bucket.items()):
            for start in range(0, len(rows), batch_size):
                yield rows[start : start + batch_size], padded


def bucket_of(length: int, longest: int) -> int:
    """Return the length that a text is padded to: 16, 32, 64, … and at most the longest text's."""
    bucket = _STEP
    while bucket < length:
        bucket *= 2
    return max(min(bucket, longest), length)


def load_texts(dataset: DatasetRef, split: str, store: ArtifactStore, column: str = "input_ids") -> Texts:
    """Read a split's texts, or their pairs."""
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

tokenizer = Tokenizer.from_file("tokenizer.json")  # cuts texts where the model ends, and pads them to the longest
{% if m.model.runtime == "openvino" %}
tokenizer.enable_truncation({{ length }})  # as the model is reshaped to below; without, any length
tokenizer.enable_padding(**tokenizer.padding | {"length": {{ length }}})
{% endif %}
rows = tokenizer.encode_batch(["a text"] * {{ batch }})
input_ids, attention_mask = {{ tensor }}([row.ids for row in rows]), {{ tensor }}([row.attention_mask for row in rows])

"""

    def prepare(self, workload: EncoderWorkload, workspace: Workspace) -> DatasetRef:
        """Tokenize the texts."""
        return prepare_texts(workload, workspace)

    def build(self, model: EncoderSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network of the configuration."""
        return build_encoder(model, dataset)

    def example_inputs(
        self, workload: EncoderWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """Return `batch_size` rows of ``benchmark.sequence_length`` tokens without padding.

        They are the test texts one after another, from the first again.
        """
        ids, length = load_texts(dataset, "test", store).ids.values, workload.benchmark.sequence_length
        positions = torch.arange(length * batch_size) % len(ids)
        rows = ids[positions].long().view(batch_size, length)
        return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}

    def metric(self, workload: EncoderWorkload) -> Score:
        """Return ``evaluate.metric``, or the task's own."""
        return METRICS[workload.metric]

    def evaluate(self, job: Job[EncoderWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """Compute ``evaluate.metric`` of the whole test split, and the task's other metric with it."""
        texts, workload = load_texts(job.dataset, "test", workspace.store), job.workload
        if workload.model.task == "classification":
            quality = evaluate_batches(
                call,
                texts.batches(workload.evaluate.batch_size, apart=apart),
                self.metric(workload),
                total=len(texts),
                apart=apart,
                also=_ALSO[workload.metric],
                classes=job.dataset.classes,
                progress=workspace.progress,
                unit="texts",
            )
        else:
            quality = self._quality_of_vectors(job, call, texts, workspace, apart=apart)
        cut = read_description(job.dataset, workspace.store).cut
        return replace(quality, metrics=quality.metrics | ({"cut_texts": float(cut)} if cut else {}))

    def _quality_of_vectors(
        self, job: Job[EncoderWorkload], call: Call, texts: Texts, workspace: Workspace, *, apart: bool
    ) -> Quality:
        """Compute the cosine with the float model's vectors, and if texts have pairs the rank of a text's own."""
        workload, size = job.workload, job.workload.evaluate.batch_size
        reference = build_encoder(workload.model, job.dataset)
        reference.load_state_dict(load_state(job.checkpoint, workspace.store))

        def vectors(model: Call, of: Texts, *, apart: bool) -> Tensor:
            return outputs_in_order(model, of.batches(size, apart=apart), len(of), workspace.progress, "texts")

        found = vectors(call, texts, apart=apart)
        targets = {"cosine": vectors(reference, texts, apart=False)}
        if workload.metric == "retrieval":
            pairs = load_texts(job.dataset, "test", workspace.store, PAIRS)
            targets["retrieval"] = vectors(call, pairs, apart=apart)
        scored = {
            name: METRICS[name].conclude(Kept([METRICS[name].take(found, target)])) for name, target in targets.items()
        }
        return as_quality(self.metric(workload), scored, len(texts), apart=apart)

    def calibration(
        self, job: Job[EncoderWorkload], store: ArtifactStore, batch_size: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the calibration split in its order, padded within each batch."""
        texts = load_texts(job.dataset, "calibration", store)
        rows = range(len(texts))
        return (texts.padded(rows[start : start + batch_size]) for start in range(0, len(texts), batch_size))

    def train(self, workload: EncoderWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train by AdamW with a learning rate that rises over a tenth of the steps and falls to zero.

        Batches are of texts of like length, in an order by seed. See `tasks.data.training.train`.
        """
        settings, texts = cast("TrainedCheckpoint", workload.checkpoint), load_texts(dataset, "train", workspace.store)
        labels, order = cast(Tensor, texts.labels), random.Random(settings.seed)

        def make(device: torch.device) -> Training:
            model = build_encoder(workload.model, dataset).to(device)
            batches = [rows for rows, _ in texts.buckets(settings.batch_size)]
            steps = settings.epochs * len(batches)
            warm = max(1, round(_WARM_UP * steps))
            optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
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
        """Find the weights of the model's directory."""
        spec = cast("EncoderDirectory", workload.model)
        made_from = {
            "files": [file_digest(path) for path in directory_files(Path(spec.path))],
            "model": spec.model_dump(mode="json"),
            "transformers": installed_version("transformers"),
            "code": code_digest(read_directory.__module__),
        }
        return made_from, lambda: read_directory(spec)

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Refuse ids beyond the vocabulary, which would read beyond the embedding's rows."""
        return {"input_ids": (0, dataset.vocabulary - 1), "attention_mask": (0, 1)}

    def propose(self, workload: EncoderWorkload, workspace: Workspace) -> Proposal:
        """Choose fewer tokens for a timed call if the model has positions for fewer."""
        longest = longest_text(build_blank(lambda: build_encoder(workload.model)))
        shorter = longest < workload.benchmark.sequence_length
        return Proposal(sections={"benchmark": {"sequence_length": longest}} if shorter else {})

    def write_resources(self, job: Job[EncoderWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """Write the tokenizer, and how texts become inputs and outputs become classes."""
        shutil.copyfile(store.path(job.dataset.kind, job.dataset.digest) / TOKENIZER, folder / TOKENIZER)
        described = read_description(job.dataset, store)
        document: dict[str, object] = {
            "inputs": _USE,
            "max_length": described.max_length,
            "padding": described.padding,
        }
        if job.workload.model.task == "classification":
            document |= {"outputs": "logits; the largest is the class", "labels": described.classes}
        else:
            document |= {"outputs": "one vector a text; texts of like meaning have a high cosine"}
        return {"tokenizer": TOKENIZER} | write_preprocessing(document, folder)

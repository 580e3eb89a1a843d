"""Text encoders: sequence classification and sentence embedding by transformers' own classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.domains.base import Domain, GivesCalibration, Proposal, Quality, Trains
from tasks.domains.text_encoder.sections import EncoderDirectory, EncoderSpec, EncoderWorkload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.job import Job, Workspace
    from tasks.outputs import Call
    from tasks.refs import CheckpointRef, DatasetRef

_AXES: Mapping[int, str] = {0: "batch", 1: "tokens"}
_INPUTS = ("input_ids", "attention_mask")


class TextEncoder(
    Domain[EncoderWorkload, EncoderSpec],
    GivesCalibration[EncoderWorkload],
    Trains[EncoderWorkload],
):
    """The domain ``text-encoder``."""

    workload = EncoderWorkload
    extra = "text"
    distributions = ("transformers", "tokenizers")
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
        from tasks.domains.text_encoder.prepare import prepare_texts

        return prepare_texts(workload, workspace)

    def build(self, model: EncoderSpec, dataset: DatasetRef) -> nn.Module:
        """Build the network of the configuration."""
        from tasks.domains.text_encoder.model import build_encoder

        return build_encoder(model, dataset)

    def example_inputs(
        self, workload: EncoderWorkload, dataset: DatasetRef, store: ArtifactStore, batch_size: int
    ) -> dict[str, Tensor]:
        """``benchmark.sequence_length`` tokens of the test texts in each of `batch_size` rows, without padding."""
        from tasks.domains.text_encoder.texts import example_batch

        return example_batch(dataset, store, workload.benchmark.sequence_length, batch_size)

    def axes(self, workload: EncoderWorkload, examples: Mapping[str, Tensor]) -> Mapping[str, Mapping[int, str]]:
        """Any number of texts and tokens."""
        return dict.fromkeys(_INPUTS, _AXES)

    def evaluate(self, job: Job[EncoderWorkload], call: Call, workspace: Workspace, *, apart: bool = False) -> Quality:
        """``evaluate.metric`` of the test split."""
        from tasks.domains.text_encoder.evaluation import evaluate_encoder

        return evaluate_encoder(job, call, workspace, apart=apart)

    def calibration(
        self, job: Job[EncoderWorkload], store: ArtifactStore, batch_size: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """The calibration split in its order, padded within each batch."""
        from tasks.domains.text_encoder.texts import load_texts

        texts = load_texts(job.dataset, "calibration", store)
        rows = range(len(texts))
        return (texts.batch(rows[start : start + batch_size]) for start in range(0, len(texts), batch_size))

    def train(self, workload: EncoderWorkload, dataset: DatasetRef, workspace: Workspace) -> dict[str, Tensor]:
        """Train the classifier."""
        from tasks.domains.text_encoder.training import train_encoder

        return train_encoder(workload, dataset, workspace)

    def obtain_checkpoint(self, workload: EncoderWorkload, dataset: DatasetRef, workspace: Workspace) -> CheckpointRef:
        """The weights of the model's directory."""
        from storage.digest import file_digest
        from tasks.checkpoint import find_or_make
        from tasks.domains.text_encoder.directory import weight_files
        from tasks.domains.text_encoder.model import read_directory
        from tasks.machine import installed_version
        from tasks.sources import code_digest

        spec = workload.model
        assert isinstance(spec, EncoderDirectory)
        made_from = {
            "files": [file_digest(path) for path in weight_files(Path(spec.path))],
            "model": spec.model_dump(mode="json"),
            "transformers": installed_version("transformers"),
            "code": code_digest(read_directory.__module__),
        }
        return find_or_make(workload, dataset, workspace, made_from, lambda: read_directory(spec))

    def input_ranges(self, dataset: DatasetRef) -> dict[str, tuple[int, int]]:
        """Ids beyond the vocabulary would read beyond the embedding's rows."""
        return {"input_ids": (0, dataset.vocabulary - 1), "attention_mask": (0, 1)}

    def propose(self, workload: EncoderWorkload, workspace: Workspace) -> Proposal:
        """Choose fewer tokens for a timed call if the model has positions for fewer."""
        from tasks.checkpoint import build_blank
        from tasks.domains.text_encoder.model import build_encoder, longest_text

        longest = longest_text(build_blank(lambda: build_encoder(workload.model)))
        timed = workload.benchmark.sequence_length
        return Proposal({"benchmark": {"sequence_length": longest}} if longest < timed else {})

    def write_resources(self, job: Job[EncoderWorkload], store: ArtifactStore, folder: Path) -> dict[str, str]:
        """The tokenizer, and how texts become inputs and outputs become classes."""
        from tasks.domains.text_encoder.resources import write_tokenizer

        return write_tokenizer(job, store, folder)

"""One random sequence and hidden state, drawn as PyTorch's dynamic quantization recipe draws them."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from storage.artifacts import ArtifactStore, artifact_digest
from storage.digest import source_digest
from tasks.progress import Progress, silent
from tasks.refs import DatasetRef
from tasks.tensor_files import save_tensors
from tasks.workload import Workload
from tasks.workload.data import RandomSequence
from tasks.workload.model import LstmSpec

KIND = "sequence"
TENSORS_FILE = "sequence.safetensors"


def prepare_sequence(workload: Workload, store: ArtifactStore, progress: Progress = silent) -> DatasetRef:
    """Keep the tensors ``inputs`` [T, B, D], ``h`` and ``c`` [L, B, D], all float32, that ``data.seed`` gives."""
    data, spec = _sections(workload)
    made_from = {
        "data": data.model_dump(mode="json"),
        "model": spec.model_dump(mode="json"),
        "torch": torch.__version__,
        "made_by": source_digest(draw_sequence),
    }
    digest = artifact_digest(KIND, made_from)
    if store.find(KIND, digest) is None:
        with torch.random.fork_rng(devices=[]), store.create(KIND, digest, made_from) as folder:
            torch.manual_seed(data.seed)
            save_tensors(draw_sequence(data, spec), folder / TENSORS_FILE)
    progress(1, 1, "sequence")
    return DatasetRef(
        kind=KIND,
        digest=digest,
        splits={"test": data.batch_size},
        sample_shape=(data.length, spec.dimension),
    )


def draw_sequence(data: RandomSequence, spec: LstmSpec) -> dict[str, torch.Tensor]:
    """Draw inputs, then h, then c from torch's global generator, in the recipe's order.

    The recipe seeds once, draws these and then makes its model from the same stream of numbers; whoever wants its
    weights draws these first.
    """
    state = (spec.layers, data.batch_size, spec.dimension)
    return {
        "inputs": torch.randn(data.length, data.batch_size, spec.dimension),
        "h": torch.randn(state),
        "c": torch.randn(state),
    }


def load_sequence(dataset: DatasetRef, store: ArtifactStore) -> dict[str, torch.Tensor]:
    """The tensors ``inputs``, ``h`` and ``c`` of a prepared sequence."""
    tensors: dict[str, torch.Tensor] = load_file(store.path(dataset.kind, dataset.digest) / TENSORS_FILE)
    return {name: tensors[name] for name in ("inputs", "h", "c")}


def _sections(workload: Workload) -> tuple[RandomSequence, LstmSpec]:
    if not isinstance(workload.data, RandomSequence) or not isinstance(workload.model, LstmSpec):
        raise TypeError(f"not a random sequence for an LSTM: {workload.data.kind}, {workload.model.kind}")
    return workload.data, workload.model

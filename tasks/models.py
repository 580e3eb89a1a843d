"""Networks by ``model.kind``: built with random weights, and the real inputs they are timed and compared on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tasks.registry import resolve

if TYPE_CHECKING:
    from torch import Tensor, nn

    from storage.artifacts import ArtifactStore
    from tasks.refs import DatasetRef
    from tasks.workload.model import Model
    from tasks.workload.workload import Workload

BUILDERS = {
    "word-lm": "tasks.domains.language_model.model:build_word_lm",
    "lstm": "tasks.domains.sequence.model:build_lstm",
    "torchvision": "tasks.domains.image_classification.model:build_vision",
    "factory": "tasks.domains.image_classification.model:build_vision",
}
_EXAMPLES = {
    "word-lm": "tasks.domains.language_model.model:example_tokens",
    "lstm": "tasks.domains.sequence.model:example_sequence",
    "torchvision": "tasks.domains.image_classification.model:example_images",
    "factory": "tasks.domains.image_classification.model:example_images",
}


def build(spec: Model, dataset: DatasetRef) -> nn.Module:
    """Build the network that `spec` describes, in evaluation mode, its weights drawn from torch's global generator."""
    builder: Callable[[Model, DatasetRef], nn.Module] = resolve(BUILDERS, spec.kind)
    return builder(spec, dataset).eval()


def example_inputs(
    workload: Workload, dataset: DatasetRef, store: ArtifactStore, *, batch_size: int | None = None
) -> dict[str, Tensor]:
    """Real inputs by name, in calling order: what is timed, traced and kept as golden input.

    Parameters
    ----------
    batch_size
        Samples in the call; ``benchmark.batch_size`` where it is left out.
    """
    maker: Callable[[Workload, DatasetRef, ArtifactStore, int], dict[str, Tensor]]
    maker = resolve(_EXAMPLES, workload.model.kind)
    return maker(workload, dataset, store, batch_size or workload.benchmark.batch_size)

"""Whether weights fit the workload's model and its data set."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from storage.errors import InputError
from tasks.checkpoint.blank import build_blank
from tasks.domains import DOMAINS
from tasks.refs import DatasetRef
from tasks.workload import Workload


def check_fit(state: Mapping[str, Tensor], workload: Workload, dataset: DatasetRef) -> None:
    """Refuse a state dict whose keys or shapes are not those of the workload's model.

    Raises
    ------
    InputError
        In one message: every key that is missing, not expected, or of another shape, with both shapes.
    """
    model = build_blank(lambda: DOMAINS[workload.domain].build(workload.model, dataset))
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    given = {key: tuple(tensor.shape) for key, tensor in state.items()}
    problems = [
        f"{key}: the checkpoint has {_shape(given.get(key))}, the workload {_shape(expected.get(key))}"
        for key in sorted(expected.keys() | given.keys())
        if given.get(key) != expected.get(key)
    ]
    if problems:
        raise InputError(
            f'The checkpoint does not fit workload "{workload.name}":\n  ' + "\n  ".join(problems) + "\n",
            hint=DOMAINS[workload.domain].fit_hint(given, workload, dataset),
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "no such key" if shape is None else str(list(shape))

"""Golden cases: real inputs with what a candidate computes for them, and whether its rows are independent.

The first case is what is timed. The further ones are single samples that differ, with a state that is not zero where
the model carries one, and a batch of several: the shapes in which a deployed model is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.extensions import DOMAINS
from tasks.job import Job, Workspace
from tasks.outputs import Call, distance, tensors_of, worst
from tasks.tensor_files import Golden
from tasks.workload.workload import Workload

SINGLES, TOGETHER = 8, 3
_BATCH, _TIME = "batch", "time"
# A word model's logits are as wide as its vocabulary: whole sequences would make a bundle's golden file its largest.
_STEPS = 3


@dataclass(frozen=True)
class Batching:
    """How far a batch's answers are from those of its rows alone.

    ``difference`` is the largest absolute one as a share of the output's range, ``changed`` the share of rows whose
    first choice differs; None where the model ranks nothing.
    """

    difference: float
    changed: float | None


def golden_cases(job: Job[Workload], call: Call, workspace: Workspace) -> tuple[Golden, Batching | None]:
    """Call a candidate on the golden inputs: the timed ones, single samples, and some of these together.

    There are further cases where the domain names an axis ``batch``; without one the rows cannot be told, and the
    second value is None.
    """
    workload, domain, store = job.workload, DOMAINS[job.workload.domain], workspace.store
    inputs = domain.example_inputs(workload, job.dataset, store, workload.benchmark.batch_size)
    timed = Golden(inputs, tensors_of(call(*inputs.values())))
    batch = domain.example_inputs(workload, job.dataset, store, SINGLES)
    axes = domain.axes(workload, batch)
    rows = {name: axis for name in batch for axis, length in axes.get(name, {}).items() if length == _BATCH}
    if not rows:
        return timed, None
    states = [name for name in batch if name in domain.outputs]
    if states:
        batch = _after_a_while(batch, states, domain.outputs, axes, call)
    singles = [_case(_rows(batch, rows, slice(row, row + 1)), call) for row in range(SINGLES)]
    together = _case(batch, call)
    few = _case(_rows(batch, rows, slice(0, TOGETHER)), call)
    chooses = domain.chooses(workload)
    return Golden(timed.inputs, timed.outputs, (*singles, few)), batching(singles, together.outputs, chooses=chooses)


def batching(singles: Sequence[Golden], together: Sequence[Tensor], *, chooses: bool) -> Batching:
    """Compare rows alone with the same rows in one call."""
    difference, changed = 0.0, None
    for index, whole in enumerate(together):
        alone = [single.outputs[index] for single in singles]
        axis = _joined_axis(alone[0], whole)
        if axis is None:  # something about the whole batch, no row's answer
            continue
        rows = torch.cat(alone, axis)
        difference = worst(difference, distance(rows, whole))
        if index == 0 and chooses:
            changed = float((rows.argmax(-1) != whole.argmax(-1)).double().mean())
    return Batching(difference, changed)


def _after_a_while(
    batch: dict[str, Tensor],
    states: Sequence[str],
    outputs: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
    call: Call,
) -> dict[str, Tensor]:
    """The same samples, cut to a few steps, with the state that the model is in after all of them."""
    found = tensors_of(call(*batch.values()))
    carried = {name: found[outputs.index(name)] for name in states}
    return {name: carried.get(name, _first_steps(tensor, axes.get(name, {}))) for name, tensor in batch.items()}


def _first_steps(tensor: Tensor, axes: Mapping[int, str]) -> Tensor:
    for axis, length in axes.items():
        if length == _TIME:
            tensor = tensor.narrow(axis, 0, min(_STEPS, tensor.shape[axis]))
    return tensor.contiguous()


def _rows(batch: Mapping[str, Tensor], rows: Mapping[str, int], which: slice) -> dict[str, Tensor]:
    # Copies: tensors that share memory cannot be kept in one file.
    return {
        name: (tensor.narrow(rows[name], which.start, which.stop - which.start) if name in rows else tensor)
        .contiguous()
        .clone()
        for name, tensor in batch.items()
    }


def _case(inputs: dict[str, Tensor], call: Call) -> Golden:
    return Golden(inputs, tensors_of(call(*inputs.values())))


def _joined_axis(row: Tensor, whole: Tensor) -> int | None:
    """The axis along which rows alone were put together, None where there is none."""
    longer = [axis for axis in range(row.dim()) if row.dim() == whole.dim() and row.shape[axis] != whole.shape[axis]]
    return longer[0] if len(longer) == 1 else None

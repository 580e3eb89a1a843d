"""Golden cases: real inputs with what a candidate computes for them, and whether its rows are independent.

The first case is what is timed. The further ones are single samples that differ, with a state that is not zero where
the model carries one, and a batch of several: the shapes in which a deployed model is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    """How far a batch's answers are from those of its rows alone, as a share of the output's range.

    ``changed`` is the share of rows whose first choice differs; None where the model ranks nothing.
    """

    difference: float
    changed: float | None


def golden_cases(job: Job[Workload], call: Call, workspace: Workspace) -> tuple[Golden, Batching | None]:
    """Call a candidate on the golden inputs: the timed ones, single samples, and some of these together.

    Without an axis ``batch`` there are no further cases, and the second value is None.
    """
    workload, domain, store = job.workload, DOMAINS[job.workload.domain], workspace.store
    inputs = domain.example_inputs(workload, job.dataset, store, workload.benchmark.batch_size)
    timed = replace(_case(inputs, call), names=domain.output_names(job, store))
    batch = domain.example_inputs(workload, job.dataset, store, SINGLES)
    axes = domain.axes(workload, batch)
    rows = {name: axis for name in batch for axis, length in axes.get(name, {}).items() if length == _BATCH}
    if not rows:
        return timed, None
    states = {name: domain.outputs.index(name) for name in batch if name in domain.outputs}
    if states:
        batch = _after_a_while(batch, states, axes, call)
    singles = [_case(_rows(batch, rows, row, 1), call) for row in range(SINGLES)]
    together = tensors_of(call(*batch.values()))
    few = _case(_rows(batch, rows, 0, TOGETHER), call)
    further = (*singles, few)
    return replace(timed, further=further), batching(singles, together, chooses=domain.chooses(workload))


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
    batch: Mapping[str, Tensor], states: Mapping[str, int], axes: Mapping[str, Mapping[int, str]], call: Call
) -> dict[str, Tensor]:
    """The same samples, cut to a few steps, with the state that the model is in after all of them."""
    outputs = tensors_of(call(*batch.values()))
    found = {}
    for name, tensor in batch.items():
        shorter = tensor
        for axis, length in axes.get(name, {}).items():
            if length == _TIME:
                shorter = shorter.narrow(axis, 0, min(_STEPS, shorter.shape[axis]))
        found[name] = outputs[states[name]] if name in states else shorter.contiguous()
    return found


def _rows(batch: Mapping[str, Tensor], rows: Mapping[str, int], start: int, count: int) -> dict[str, Tensor]:
    cut = {name: each.narrow(rows[name], start, count) if name in rows else each for name, each in batch.items()}
    # Copies: tensors that share memory cannot be kept in one file.
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in cut.items()}


def _case(inputs: dict[str, Tensor], call: Call) -> Golden:
    return Golden(inputs, tensors_of(call(*inputs.values())))


def _joined_axis(row: Tensor, whole: Tensor) -> int | None:
    """The axis along which rows alone were put together, None where there is none."""
    longer = [axis for axis in range(row.dim()) if row.dim() == whole.dim() and row.shape[axis] != whole.shape[axis]]
    return longer[0] if len(longer) == 1 else None

"""Golden cases (real inputs with a candidate's outputs), and a test for dependence between the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tasks.data.outputs import Call, distance, tensors_of, worst
from tasks.data.tensor_files import Golden
from tasks.domains import domain_named
from tasks.values.job import Job, Workspace
from tasks.workload.workload import Workload

SINGLES, TOGETHER = 8, 3
_BATCH, _TIME = "batch", "time"
# A word model's logits are as wide as the vocabulary, so full sequences would make the golden file very large.
_STEPS = 3


@dataclass(frozen=True)
class Batching:
    """Effect of batching on the same rows' outputs, as a fraction of their range, and on their top-1 predictions."""

    difference: float
    changed: float | None


def golden_cases(job: Job[Workload], call: Call, workspace: Workspace) -> tuple[Golden, Batching | None]:
    """Call a candidate on the benchmark's inputs and, if they have a ``batch`` axis, on single samples and a batch."""
    workload, domain, store = job.workload, domain_named(job.workload.domain), workspace.store
    dataset = job.dataset.as_prepared()  # all candidates are timed with the same inputs, even during a search
    inputs = domain.example_inputs(workload, dataset, store, workload.benchmark.batch_size)
    timed = replace(_case(inputs, call), names=domain.output_names(job, store))
    batch = domain.example_inputs(workload, dataset, store, SINGLES)
    axes = domain.axes(workload, batch)
    rows = {name: axis for name in batch for axis, length in axes.get(name, {}).items() if length == _BATCH}
    if not rows:
        return timed, None
    states = {name: domain.outputs.index(name) for name in batch if name in domain.outputs}
    if states:
        batch = _with_later_state(batch, states, axes, call)
    singles = [_case(_rows(batch, rows, row, 1), call) for row in range(SINGLES)]
    together = tensors_of(call(*batch.values()))
    few = _case(_rows(batch, rows, 0, TOGETHER), call)
    further = (*singles, few)
    return replace(timed, further=further), batching(singles, together, chooses=domain.chooses(workload))


def batching(singles: Sequence[Golden], together: Sequence[Tensor], *, chooses: bool) -> Batching:
    """Compare the outputs of rows in separate calls with the outputs of the same rows in one call."""
    difference, changed = 0.0, None
    for index, joint in enumerate(together):
        separate = [single.outputs[index] for single in singles]
        shape = separate[0].shape if separate[0].dim() == joint.dim() else joint.shape
        longer = [axis for axis, length in enumerate(joint.shape) if shape[axis] != length]
        if len(longer) != 1:  # an output without a batch axis describes the entire batch
            continue
        rows = torch.cat(separate, longer[0])
        difference = worst(difference, distance(rows, joint))
        if index == 0 and chooses:
            changed = float((rows.argmax(-1) != joint.argmax(-1)).double().mean())
    return Batching(difference, changed)


def _with_later_state(
    batch: Mapping[str, Tensor], states: Mapping[str, int], axes: Mapping[str, Mapping[int, str]], call: Call
) -> dict[str, Tensor]:
    """Shorten the inputs to the first few steps, and set the state to the model's state after all steps."""
    outputs = tensors_of(call(*batch.values()))
    later = {}
    for name, tensor in batch.items():
        shorter = tensor
        for axis, length in axes.get(name, {}).items():
            if length == _TIME:
                shorter = shorter.narrow(axis, 0, min(_STEPS, shorter.shape[axis]))
        later[name] = outputs[states[name]] if name in states else shorter.contiguous()
    return later


def _rows(batch: Mapping[str, Tensor], rows: Mapping[str, int], start: int, count: int) -> dict[str, Tensor]:
    cut = {name: values.narrow(rows[name], start, count) if name in rows else values for name, values in batch.items()}
    # Copy the tensors, because tensors that share memory cannot be saved in one file.
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in cut.items()}


def _case(inputs: dict[str, Tensor], call: Call) -> Golden:
    return Golden(inputs, tensors_of(call(*inputs.values())))

"""Measurements for the trial of a workload: a candidate's pace, and the layers that lose most."""

from __future__ import annotations

import time

import torch

from tasks.build import model_source, open_candidate
from tasks.job import Job, Workspace
from tasks.quantize.spec import excluding
from tasks.refs import CandidateRef
from tasks.sensitivity import sensitivity
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload

_CALLS, _LONGEST_S = 5, 5.0
_NAMED = 3


def pace(job: Job[Workload], candidate: CandidateRef, workspace: Workspace) -> float:
    """Return the duration of a candidate's shortest call, in seconds per row; stop after `_LONGEST_S` seconds."""
    inputs = tuple(model_source(job, workspace).example_inputs.values())
    opened, calls = open_candidate(candidate, workspace, torch.get_num_threads()), list[float]()
    with opened.scope(), torch.inference_mode():
        while len(calls) < _CALLS and sum(calls) < _LONGEST_S:
            began = time.perf_counter()
            opened.call(*inputs)
            calls.append(time.perf_counter() - began)
    return min(calls) / job.workload.benchmark.batch_size


def worst_layers(job: Job[Workload], recipe: Recipe, workspace: Workspace) -> tuple[tuple[str, ...], Recipe] | None:
    """Return the layers that lose most, and a recipe that keeps them float; return None if no other layer is quantized.

    Raises
    ------
    QuantizationError
        Torch cannot convert the model.
    """
    ranking = sensitivity(job, recipe, workspace)
    count = min(_NAMED, len(ranking) - 1)  # at least one layer must stay quantized
    return (tuple(layer.module for layer in ranking[:count]), excluding(recipe, ranking, count)) if count > 0 else None

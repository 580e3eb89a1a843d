"""What a quantization method is: it converts a float model and can rebuild the result's structure without data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from storage.artifacts import ArtifactStore
from tasks.progress import Progress, silent
from tasks.refs import DatasetRef, ModuleCoverage
from tasks.registry import resolve
from tasks.workload.recipe import Recipe
from tasks.workload.workload import Workload


@dataclass(frozen=True)
class Context:
    """What a method may look at besides the model: data for calibration, inputs of the right shape, where to tell."""

    workload: Workload
    dataset: DatasetRef
    store: ArtifactStore
    example_inputs: Mapping[str, torch.Tensor]
    progress: Progress = silent


@dataclass(frozen=True)
class Converted:
    """A converted model in evaluation mode, the flow that was taken ("" where there is no choice), and its coverage."""

    model: torch.nn.Module
    flow: str
    coverage: tuple[ModuleCoverage, ...]


class Method(Protocol):
    """One way to quantize.

    `convert` takes a float model in evaluation mode, which it may change, and gives the quantized one. `skeleton` gives
    a module of the same structure with arbitrary parameters, without data: the saved tensors are then put into it. So
    no pickle is ever needed to store an eager quantized model.

    The method's module names in ``PARTS`` the modules, besides itself, whose source decides the result and so goes into
    the artifact's digest.
    """

    def convert(self, model: torch.nn.Module, recipe: Recipe, context: Context) -> Converted:
        """Quantize `model` as `recipe` says."""
        ...

    def skeleton(
        self, model: torch.nn.Module, recipe: Recipe, flow: str, example_inputs: Mapping[str, torch.Tensor]
    ) -> torch.nn.Module:
        """Give `model` the structure that `convert` gave it, in the flow that it took."""
        ...


# Imported only when a recipe asks for it: a benchmark child that loads a float model needs no quantizer.
METHODS: dict[str, str] = {
    "none": "tasks.quantize.methods.float:Plain",
    "dynamic": "tasks.quantize.methods.dynamic:Dynamic",
    "static": "tasks.quantize.methods.static:Static",
    "qat": "tasks.quantize.methods.qat:Qat",
}


def method_named(name: str) -> Method:
    """The method that recipes call `name`; methods are stateless and made without arguments.

    Raises
    ------
    KeyError
        No such method; a validated recipe cannot cause this.
    """
    method: Method = resolve(METHODS, name)()
    return method

"""What a quantization method is: a registry entry that converts a float model and can rebuild the result's structure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch

from storage.artifacts import ArtifactStore
from tasks.progress import Progress, silent
from tasks.refs import DatasetRef, ModuleCoverage
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
    """

    def convert(self, model: torch.nn.Module, recipe: Recipe, context: Context) -> Converted: ...

    def skeleton(
        self, model: torch.nn.Module, recipe: Recipe, flow: str, example_inputs: Mapping[str, torch.Tensor]
    ) -> torch.nn.Module: ...


# Imported only when a recipe asks for it: a benchmark child that loads a float model needs no quantizer.
METHODS: dict[str, str] = {
    "none": "tasks.quantize.plain:Plain",
    "dynamic": "tasks.quantize.dynamic:Dynamic",
    "static": "tasks.quantize.static:Static",
    "qat": "tasks.quantize.qat:Qat",
}


def method_class(name: str) -> type[Method]:
    """The class that carries out a recipe's method.

    Raises
    ------
    KeyError
        No such method; a validated recipe cannot cause this.
    """
    module, _, attribute = METHODS[name].partition(":")
    found: type[Method] = getattr(import_module(module), attribute)
    return found


def method_named(name: str) -> Method:
    """An instance of :func:`method_class`; methods are stateless and take no arguments."""
    return method_class(name)()

"""The base class of converters, each of which applies a method's specs to torch modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from tasks.quantize.spec import Spec
from tasks.workload.recipe import METHODS

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from tasks.quantize.source import ModelSource
    from tasks.values.job import Workspace
    from tasks.values.refs import ModuleCoverage


@dataclass(frozen=True)
class Converted:
    """A converted model in evaluation mode."""

    model: nn.Module
    coverage: tuple[ModuleCoverage, ...]


@dataclass(frozen=True)
class Trained:
    """A fine-tuned model that can be exported; ``folded`` maps the paths of batch norms to the layers' paths."""

    model: nn.Module
    folded: Mapping[str, str]


class Converter(ABC):
    """An object that applies a method's specs to torch modules."""

    @abstractmethod
    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model that is in evaluation mode; the model may be changed in place."""

    @abstractmethod
    def skeleton(self, model: nn.Module, spec: Spec, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Give a model the structure of a converted model, into which saved tensors can be loaded."""

    def pack(self, model: nn.Module) -> nn.Module:
        """Arrange a model's loaded weights in the order that the kernels need."""
        return model

    def library(self, workspace: Workspace) -> Path | None:
        """Find or compile the operator library that converted models call; return None if torch has all operators."""
        return None

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune a model with the spec's training settings, or load the result of an earlier run."""
        raise NotImplementedError


def converter_of(spec: Spec) -> Converter:
    """Import and create the converter that applies a spec."""
    converter: Converter = resolve_name(METHODS[spec.method].converts)()
    return converter

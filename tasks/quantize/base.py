"""Base classes for quantization methods.

A method turns recipes into specs, and names the `Converter` that applies the specs. A method's module does not import
torch, because nightquant imports it to validate a workload file. The converter needs torch, and is imported on demand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeVar, cast

from tasks.quantize.spec import Spec
from tasks.workload.recipe import Recipe
from tasks.workload.registry import METHODS, Need

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from tasks.quantize.source import ModelSource
    from tasks.values.job import Workspace
    from tasks.values.refs import ModuleCoverage

R = TypeVar("R", bound=Recipe)


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


class Axis(NamedTuple):
    """A recipe key that a search varies, and the values to try; the default value comes first."""

    key: str
    values: tuple[object, ...]
    types: frozenset[str] = frozenset()  # if not empty, the key affects only models with such modules
    same_speed: bool = False  # whether the key has little effect on a model's speed


class Method(ABC, Generic[R]):
    """A way to quantize torch modules."""

    recipe: ClassVar[type[Recipe]]  # pydantic model of the method's recipes
    converts: ClassVar[str]  # import path of the method's `Converter`, ``module:class``
    quantizes: ClassVar[bool] = True  # whether quantized layers can be compared with the float layers
    needs: ClassVar[tuple[Need, ...]] = ()  # data that a domain must provide in addition to a float model
    axes: ClassVar[tuple[Axis, ...]] = ()  # recipe keys that a search varies

    @abstractmethod
    def spec(self, recipe: R) -> Spec:
        """Translate a recipe into a spec."""

    def converter(self) -> Converter:
        """Import and create the method's converter."""
        return cast(Converter, resolve_name(self.converts)())


def converter_of(spec: Spec) -> Converter:
    """Import and create the converter that applies a spec."""
    return METHODS[spec.recipe.method].converter()

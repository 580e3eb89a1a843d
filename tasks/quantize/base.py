"""Base classes of quantization methods. A method turns recipes into specs, and names a `Converter`.

A method's module does not import torch, because validating a workload file imports this module. The method's converter,
which needs torch, is imported on demand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from tasks.extensions import METHODS, Need
from tasks.quantize.spec import Spec
from tasks.workload.recipe import Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from tasks.job import Workspace
    from tasks.quantize.source import ModelSource
    from tasks.refs import ModuleCoverage

R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True)
class Converted:
    """A converted model in evaluation mode, with the graph mode of the conversion ("" if the method has only one)."""

    model: nn.Module
    graph: str
    coverage: tuple[ModuleCoverage, ...]


@dataclass(frozen=True)
class Quantized(Converted):
    """A model to compile; in the compiled model, ``products`` convolutions and matrix products must run in int8."""

    products: int = 0


@dataclass(frozen=True)
class Trained:
    """A fine-tuned model that eager torch can run and that exporters accept, with the graph mode of the training.

    ``paths`` maps each module's path to the module's path in the float model. ``folded`` maps the path of each folded
    module, such as a batch norm, to the path of the module into which it was folded.
    """

    model: nn.Module
    graph: str
    paths: Mapping[str, str]
    folded: Mapping[str, str]


class Converter(ABC):
    """A converter, which applies a method's specs to torch modules."""

    @abstractmethod
    def convert(self, model: nn.Module, spec: Spec, source: ModelSource) -> Converted:
        """Quantize a float model in evaluation mode; this may change the model.

        Raises
        ------
        QuantizationError
            The spec cannot be applied to this model.
        """

    @abstractmethod
    def skeleton(self, model: nn.Module, spec: Spec, graph: str, example_inputs: Mapping[str, Tensor]) -> nn.Module:
        """Give a model the structure of a converted model, with arbitrary parameters and without data.

        The caller loads saved tensors into this structure. Quantized models can therefore be stored without a pickle.
        """

    def pack(self, model: nn.Module) -> nn.Module:
        """Arrange a model's loaded weights in the order that the kernels need; the state dict may become empty."""
        return model

    def library(self, workspace: Workspace) -> Path | None:
        """Find or compile the operators that converted models call; return None if torch provides all operators.

        The library is stored with the converted module, and loaded before the module is opened.

        Raises
        ------
        QuantizationError
            The library cannot be compiled on this host.
        """
        return None

    def train(self, spec: Spec, source: ModelSource) -> Trained:
        """Fine-tune a model, or find an earlier result; the spec must have training."""
        raise TypeError(f'The "{spec.recipe.method}" method does not support training.')


class Method(ABC, Generic[R]):
    """A way to quantize torch modules."""

    recipe: ClassVar[type[Recipe]]  # pydantic model of the method's recipes
    converts: ClassVar[str]  # "module:class" of the method's `Converter`
    quantizes: ClassVar[bool] = True  # whether quantized layers can be compared with float layers
    needs: ClassVar[tuple[Need, ...]] = ()  # data that a domain must provide besides a float model

    @abstractmethod
    def spec(self, recipe: R) -> Spec:
        """Return the spec of a recipe."""

    def converter(self) -> Converter:
        """Import and create the method's converter."""
        return cast(Converter, resolve_name(self.converts)())


def converter_of(spec: Spec) -> Converter:
    """Import and create the converter that applies a spec."""
    return METHODS[spec.recipe.method].converter()

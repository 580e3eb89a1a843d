"""Base class for makers that quantize an exported model; it defines the steps and computes the coverage."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from storage.errors import QuantizationError
from tasks.data.outputs import finite_outputs
from tasks.environment.libraries import quiet
from tasks.quantize.coverage import cover_products, excluded_modules
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import Spec
from tasks.runtimes import onnx_model
from tasks.runtimes.base import CandidateFiles, Made, Maker, Opener
from tasks.runtimes.onnx_model import FOLDED, KIND, find_or_export


class ExportedMaker(Maker):
    """A maker that quantizes an exported model with the runtime's tools."""

    runtime: ClassVar[str]  # name of the runtime in a recipe's `runtimes`
    opener: ClassVar[type[Opener]]
    tools: ClassVar[str]  # name of the tools that quantize the exported model
    left_float: ClassVar[str]  # reason given for a module that the tools leave in float; contains ``{type}``

    @abstractmethod
    def quantize(
        self, exported: Path, folder: Path, spec: Spec, excluded: frozenset[str], source: ModelSource
    ) -> tuple[str, ...]:
        """Apply a spec to an exported file; return notes about differences from the recipe (see `Made`)."""

    @abstractmethod
    def products(self, folder: Path) -> Iterator[tuple[str, bool]]:
        """Yield the module path of each operation with weights, and whether the weights are int8."""

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Export the float or fine-tuned model, or reuse an earlier export."""
        return {KIND: find_or_export(source, spec).name}

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Quantize the exported model. The candidate's size is the total size of its files."""
        model, exported = source.float_model(), find_or_export(source, spec)
        excluded = excluded_modules(model, spec.exclude)
        with quiet():
            notes = self.quantize(exported / onnx_model.MODEL, folder, spec, excluded, source)
            products = list(self.products(folder))
        int8 = all_int8(products)
        if disobeyed := sorted({path for path, is_int8 in products if is_int8 and path in excluded}):
            raise QuantizationError(
                f"{self.tools} quantized modules that the recipe excludes: {', '.join(disobeyed)}.",
                hint=f"Remove {self.runtime} from the recipe's `runtimes`.",
            )
        # A folded module, such as a batch norm, is part of another module's operation in the exported model.
        folded: dict[str, str] = json.loads((exported / FOLDED).read_text(encoding="utf-8"))
        quantized = {path for path, is_int8 in int8.items() if is_int8}
        coverage = cover_products(model, spec, quantized, folded, self.left_float)
        opened = self.opener().open(CandidateFiles(folder, {}), 1)
        finite_outputs(opened, source.example_inputs, spec.name)
        size_bytes = sum(path.stat().st_size for path in folder.iterdir())
        return Made(size_bytes=size_bytes, coverage=coverage, notes=notes)


def all_int8(products: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    """Return whether all weights of each module are int8, keyed by the module's path."""
    modules: dict[str, bool] = {}
    for path, is_int8 in products:
        modules[path] = is_int8 and modules.get(path, True)
    return modules


def module_of(node: str) -> str:
    """Return the path of a node's module, which is the part of the node's name before the first slash."""
    path, slash, _ = node.partition("/")
    return path if slash else ""

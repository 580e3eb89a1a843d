"""What the makers of runtimes that read the exported model have in common: the order of steps, and the coverage."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from storage.errors import QuantizationError
from tasks.libraries import quiet
from tasks.outputs import finite_outputs
from tasks.quantize.coverage import cover, excluded_modules, leaves_of, unnamed
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import EVERY, Spec
from tasks.refs import ModuleCoverage
from tasks.runtimes import onnx_model
from tasks.runtimes.base import CandidateFiles, Made, Maker, Opener
from tasks.runtimes.onnx_model import FOLDED, KIND, find_or_export


class ExportedMaker(Maker):
    """Quantizes an exported model by the tools of its runtime."""

    opener: ClassVar[type[Opener]]
    files: ClassVar[tuple[str, ...]]  # that `quantize` writes
    left_float: ClassVar[str]  # why the tools leave a module of a ``{type}`` float that nothing excludes
    quantizes_nothing: ClassVar[str]  # the hint if they leave all of them float

    @abstractmethod
    def quantize(self, exported: Path, folder: Path, spec: Spec, excluded: frozenset[str], source: ModelSource) -> None:
        """Carry a spec out on an exported file; raise `QuantizationError` if the tools refuse the model."""

    @abstractmethod
    def products(self, folder: Path) -> Iterator[tuple[str, bool]]:
        """Yield the module of each product in the files, by path, and whether its weights are int8."""

    def int8_by_module(self, folder: Path) -> dict[str, bool]:
        """Return whether all products of a module have int8 weights, for each module that has products."""
        found: dict[str, bool] = {}
        for path, is_int8 in self.products(folder):
            found[path] = is_int8 and found.get(path, True)
        return found

    def refuse(self, outputs: Sequence[Tensor], spec: Spec, source: ModelSource) -> None:
        """Refuse wrong outputs of the example inputs, with a `QuantizationError`."""

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Find or make the exported float or fine-tuned model."""
        return {KIND: find_or_export(source, spec).name}

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Quantize the exported model; the size is that of all files."""
        model, exported = source.float_model(), find_or_export(source, spec)
        excluded = excluded_modules(model, spec.recipe.exclude)
        with quiet():
            self.quantize(exported / onnx_model.MODEL, folder, spec, excluded, source)
            int8 = self.int8_by_module(folder)
        if spec.layers and not any(int8.values()):
            raise QuantizationError(
                f'The recipe "{spec.recipe.name}" quantizes nothing of the model.',
                hint=f"{self.quantizes_nothing}: take the runtime out of the recipe.",
            )
        # A module without a product of its own was folded into another one: a batch norm into its convolution.
        folded: dict[str, str] = json.loads((exported / FOLDED).read_text(encoding="utf-8"))

        def why_float(leaf: ModuleCoverage) -> str:
            head = folded.get(leaf.module, leaf.module)
            if spec.why_float or int8.get(head):
                return spec.why_float
            if not excluded.isdisjoint((leaf.module, head)):
                return "excluded by the recipe"
            if head not in int8:
                return ""
            if EVERY not in spec.layers and leaf.type not in spec.layers:
                return unnamed(leaf.type)
            return self.left_float.format(type=leaf.type)

        opened = self.opener().open(CandidateFiles(folder, {}), 1)
        self.refuse(finite_outputs(opened, source.example_inputs, spec.recipe.name), spec, source)
        size_bytes = sum((folder / name).stat().st_size for name in self.files)
        return Made(size_bytes=size_bytes, coverage=cover(leaves_of(model), why_float))


def module_of(node: str) -> str:
    """Path of the module that a node of that name comes from, also where a runtime has put more behind the name."""
    path, slash, _ = node.partition("/")
    return path if slash else ""

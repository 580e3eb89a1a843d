"""Runtime ``aot-inductor``: exported by torch.export and compiled ahead of time to machine code, ``model.pt2``.

Neither TorchScript nor ``torch.ao.quantization`` is used here, which upstream has deprecated.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from storage.documents import JsonObject
from storage.errors import QuantizationError
from tasks.extensions import METHODS
from tasks.quantize.methods.qat import QatRecipe
from tasks.quantize.methods.static import GraphRecipe, StaticRecipe
from tasks.runtimes.aot_compile import (
    TEMPORARY,
    compile_package,
    int8_products,
    open_package,
    own_cache,
    processor,
    refuse_other,
    target,
)
from tasks.runtimes.base import CandidateFiles, Checker, Made, Opened, RawCall, RawTensor, Runtime

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.quantize.source import ModelSource
    from tasks.runtimes.operators import Operator
    from tasks.workload.recipe import Recipe

MODEL = "model.pt2"


def load_aot_inductor(files: dict[str, bytes], manifest: JsonObject) -> RawCall:
    """Open ``model.pt2``, and its operators' library, with the torch and on the kind of processor of its making."""
    import ctypes
    import tempfile
    from importlib.metadata import version
    from pathlib import Path

    import torch
    from torch._inductor import codecache

    if version("torch") != manifest["versions"]["torch"]:
        raise RuntimeError(f"compiled for torch {manifest['versions']['torch']}, and this is {version('torch')}")
    here = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    missing = [name for name in manifest["required_isa"]["instructions"] if name not in here]
    if missing:
        raise RuntimeError(f"compiled for a processor with {', '.join(missing)}, which this one lacks")
    name, *libraries = manifest["model"]["files"]
    with tempfile.TemporaryDirectory() as folder:  # of this user alone; the loader takes paths
        for file in (name, *libraries):
            Path(folder, file).write_bytes(files[file])
        for library in libraries:
            torch.ops.load_library(Path(folder, library))  # type: ignore[no-untyped-call]
        # To warn of what was checked above, torch would try out a compiler, in a folder that others can write.
        codecache.get_device_information = lambda device_type: {}
        model = torch._inductor.aoti_load_package(str(Path(folder, name)))

    def call(inputs: list[RawTensor]) -> list[RawTensor]:
        tensors = [
            torch.frombuffer(bytearray(values), dtype=getattr(torch, dtype)).reshape(shape)
            for dtype, shape, values in inputs
        ]
        with torch.inference_mode():
            result = model(*tensors)
        outputs = [output.contiguous() for output in ([result] if torch.is_tensor(result) else result)]
        return [
            (str(output.dtype)[6:], list(output.shape), ctypes.string_at(output.data_ptr(), output.nbytes))
            for output in outputs
        ]

    return call


class AotInductor(Runtime):
    """Compiles the float model, or what a method or torchao's PT2E made of it."""

    extra = "inductor"
    main_file = MODEL
    compiles = True
    distributions = ("torch", "torchao")
    caution = "A compiled package is a program, for one version of torch and one kind of processor."
    usage = """\
import os

import torch

# Compiled for torch {{ m.versions.torch }} on {{ m.required_isa.architecture }} with
# {{ m.required_isa.instructions | join(", ") }}.
{% for library in m.model.files[1:] %}
torch.ops.load_library("{{ library }}")
{% endfor %}
# Loading tries out the C++ compiler, if there is one; by default in a folder that others can write.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.expanduser("~/.cache/inductor"))
model = torch._inductor.aoti_load_package("{{ m.model.file }}")
with torch.inference_mode():
    # As model(...), which reads descriptions of inputs and outputs in every call.
    outputs = model.loader.run([{{ m.model.inputs | map(attribute="name") | join(", ") }}])
"""
    not_reproducible: ClassVar[dict[str, str]] = {
        MODEL: "a package holds what the C++ compiler made in folders of random names; the file is the very one that "
        "was measured, but making it anew gives other bytes"
    }

    def checker(self) -> Checker:
        """Open ``model.pt2`` with torch alone."""
        return load_aot_inductor

    def obstacle(self, recipe: Recipe) -> str:
        """It takes what torch.export takes, quantizes statically itself, and goes on from what training gave."""
        if METHODS[recipe.method].exports:
            switched = getattr(recipe, "onednn", True) is False
            return "a compiled package cannot switch oneDNN off" if switched else ""
        if not isinstance(recipe, GraphRecipe):
            return f'it does not carry out method "{recipe.method}"; use torchscript or onnxruntime for it'
        if recipe.weights != "per-channel":
            return 'its int8 kernels take weights per channel only: use weights = "per-channel"'
        if recipe.graph != "auto" and isinstance(recipe, StaticRecipe):
            return f'it quantizes the graph of torch.export, and knows no graph = "{recipe.graph}"'
        if recipe.engine not in ("x86", "onednn"):
            return f'its int8 kernels are those of oneDNN, not of the engine "{recipe.engine}"'
        return ""

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """Those that the compiler may use, by their names in ``/proc/cpuinfo``; for int8 the one that it counts on too.

        With VNNI activations take all 8 bits, and their products would saturate on a processor without.
        """
        words = processor()
        counted_on = [name for name in ("avx512_vnni", "avx_vnni") if name in words][:1]
        return list(dict.fromkeys([*target()[0], *(counted_on if isinstance(recipe, GraphRecipe) else [])]))

    def environment(self) -> dict[str, object]:
        """The versions, the compiler, and the processor that it compiles for."""
        from tasks.quantize.engine import instruction_set

        instructions, compiler = target()
        return super().environment() | instruction_set() | {"instructions": list(instructions), "compiler": compiler}

    def shared(self, source: ModelSource, recipe: Recipe) -> dict[str, str]:
        """The converted module, where the method makes one that can be exported."""
        if not METHODS[recipe.method].exports:
            return {}
        from tasks.quantize.converted import KIND, find_or_convert

        return {KIND: find_or_convert(source, recipe).name}

    def make(self, source: ModelSource, recipe: Recipe, folder: Path) -> Made:
        """Quantize or convert, compile, and compare what comes out; the size is that of all files."""
        from tasks.outputs import finite_outputs
        from tasks.quantize.engine import quiet
        from tasks.quantize.export import export
        from tasks.quantize.operators import SUFFIX

        # What is left there is as large as the model, and a worker process may end by being killed.
        with quiet(), tempfile.TemporaryDirectory(prefix=TEMPORARY) as cache_folder, own_cache(cache_folder):
            model, products, made = self._model(source, recipe, folder)
            before = finite_outputs(model, source.example_inputs, recipe.name)
            compile_package(export(model, source.example_inputs, source.axes), folder / MODEL)
        found = int8_products(folder / MODEL)
        if found < products:
            raise QuantizationError(
                f'Of {products} products that the recipe "{recipe.name}" quantizes, Inductor computes only {found} in '
                "int8, and the others in float.",
                hint="Exclude modules until all are, or use torchscript or onnxruntime for it.",
            )
        refuse_other(before, finite_outputs(open_package(folder / MODEL), source.example_inputs, recipe.name), recipe)
        files = folder / MODEL, *folder.glob(f"*{SUFFIX}")
        return made.model_copy(update={"size_bytes": sum(path.stat().st_size for path in files)})

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the package; its loops and oneDNN's take torch's intra-op threads."""
        import torch

        from tasks.quantize.operators import load_libraries

        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        load_libraries(files.folder)
        return Opened(open_package(files.folder / MODEL))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """By torch's profiler and oneDNN's: a package's own loops are what neither names."""
        from tasks.runtimes.torch_profile import profile_torch

        return profile_torch(partial(opened.call, *inputs), calls)

    def _model(self, source: ModelSource, recipe: Recipe, folder: Path) -> tuple[nn.Module, int, Made]:
        """What is compiled, how many of its products must then be int8, and what became of its modules.

        The library of a method's own operators is put beside the package.
        """
        if isinstance(recipe, GraphRecipe):
            from tasks.quantize.pt2e import export_fine_tuned, quantize_exported

            if isinstance(recipe, QatRecipe):
                quantized = export_fine_tuned(recipe, source)
            else:
                assert isinstance(recipe, StaticRecipe)
                quantized = quantize_exported(source.float_model(), recipe, source)
            return (
                quantized.model,
                quantized.products,
                Made(size_bytes=0, coverage=quantized.coverage, graph=quantized.graph),
            )
        from tasks.quantize.converted import Structure, find_or_convert, open_converted
        from tasks.quantize.int8_modules import align_for_aot_inductor
        from tasks.quantize.operators import SUFFIX

        converted = find_or_convert(source, recipe)
        structure, model = Structure.read(converted), open_converted(converted)
        align_for_aot_inductor(model)
        for library in converted.glob(f"*{SUFFIX}"):
            shutil.copyfile(library, folder / library.name)
        return model, 0, Made(size_bytes=0, coverage=structure.coverage, graph=structure.graph)

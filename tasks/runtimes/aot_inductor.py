"""Runtime ``aot-inductor``: exported by torch.export and compiled ahead of time to machine code, ``model.pt2``.

Neither TorchScript nor ``torch.ao.quantization`` is used here, which upstream has deprecated.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from storage.errors import ConfigurationError, QuantizationError, first_line
from storage.root import cache_base
from tasks.quantize.methods import METHODS
from tasks.quantize.methods.static import StaticRecipe
from tasks.runtimes.base import CandidateFiles, Checker, Made, Opened, RawCall, RawTensor, Runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn
    from torch.export import ExportedProgram

    from tasks.outputs import Call
    from tasks.quantize.source import ModelSource
    from tasks.workload.recipe import Recipe

MODEL = "model.pt2"
_CACHE, _TEMPORARY = "TORCHINDUCTOR_CACHE_DIR", "nightquant-inductor-"
OPTIONS: dict[str, object] = {
    # Without it, int8 weights are not packed and products silently run in float (pytorch/ao#4566).
    "freezing": True,
    # Only the vector instructions that are named below, not whatever else this very processor has.
    "cpp.march": "",
    # Else the number of threads while compiling would be the package's for ever.
    "cpp.dynamic_threads": True,
    # They would lie in the shared folder, wherever the cache is.
    "aot_inductor.precompile_headers": False,
}
_INT8_PRODUCT = re.compile(rb"aoti_torch_cpu__q(?:conv|linear)\w*\(")


def load_aot_inductor(files: dict[str, bytes], manifest: dict[str, Any]) -> RawCall:
    """Open ``model.pt2`` with torch alone, on the torch and the kind of processor that it was compiled for."""
    import ctypes
    import tempfile
    from importlib.metadata import version
    from pathlib import Path

    import torch

    if version("torch") != manifest["versions"]["torch"]:
        raise RuntimeError(f"compiled for torch {manifest['versions']['torch']}, and this is {version('torch')}")
    here = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    missing = [name for name in manifest["required_isa"]["instructions"] if name not in here]
    if missing:
        raise RuntimeError(f"compiled for a processor with {', '.join(missing)}, which this one lacks")
    with tempfile.TemporaryDirectory() as folder:  # of this user alone; the loader takes a path
        package = Path(folder, "model.pt2")
        package.write_bytes(files[manifest["model"]["file"]])
        model = torch._inductor.aoti_load_package(str(package))

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
    distributions = ("torch", "torchao")
    caution = "A compiled package is a program, for one version of torch and one kind of processor."
    usage = """\
import torch

# Compiled for torch {{ m.versions.torch }} on {{ m.required_isa.architecture }} with
# {{ m.required_isa.instructions | join(", ") }}.
model = torch._inductor.aoti_load_package("{{ m.model.file }}")
with torch.inference_mode():
    outputs = model({{ m.model.inputs | map(attribute="name") | join(", ") }})
"""
    not_reproducible: ClassVar[dict[str, str]] = {
        MODEL: "a package holds what the C++ compiler made in folders of random names; the file is the very one that "
        "was measured, but making it anew gives other bytes"
    }

    def checker(self) -> Checker:
        """Open ``model.pt2`` with torch alone."""
        return load_aot_inductor

    def obstacle(self, recipe: Recipe) -> str:
        """It takes what torch.export takes, and quantizes statically itself."""
        if METHODS[recipe.method].exports:
            switched = getattr(recipe, "onednn", True) is False
            return "a compiled package cannot switch oneDNN off" if switched else ""
        if not isinstance(recipe, StaticRecipe):
            return f'it does not carry out method "{recipe.method}"; use torchscript or onnxruntime for it'
        if recipe.weights != "per-channel":
            return 'its int8 kernels take weights per channel only: use weights = "per-channel"'
        if recipe.graph != "auto":
            return f'it quantizes the graph of torch.export, and knows no graph = "{recipe.graph}"'
        if recipe.engine not in ("x86", "onednn"):
            return f'its int8 kernels are those of oneDNN, not of the engine "{recipe.engine}"'
        return ""

    def required_instructions(self, recipe: Recipe) -> list[str]:
        """Those that the compiler may use, by their names in ``/proc/cpuinfo``; for int8 the one that it counts on too.

        With VNNI activations take all 8 bits, and their products would saturate on a processor without.
        """
        words = _processor()
        counted_on = [name for name in ("avx512_vnni", "avx_vnni") if name in words][:1]
        return list(dict.fromkeys([*_target()[0], *(counted_on if isinstance(recipe, StaticRecipe) else [])]))

    def environment(self) -> dict[str, object]:
        """The versions, the compiler, and the processor that it compiles for."""
        from tasks.quantize.engine import instruction_set

        instructions, compiler = _target()
        return super().environment() | instruction_set() | {"instructions": list(instructions), "compiler": compiler}

    def shared(self, source: ModelSource, recipe: Recipe) -> dict[str, str]:
        """The converted module, where the method makes one that can be exported."""
        if not METHODS[recipe.method].exports:
            return {}
        from tasks.quantize.converted import KIND, find_or_convert

        return {KIND: find_or_convert(source, recipe).name}

    def make(self, source: ModelSource, recipe: Recipe, folder: Path) -> Made:
        """Quantize or convert, compile, and compare what comes out; the size is the package's."""
        from tasks.outputs import finite_outputs
        from tasks.quantize.engine import quiet
        from tasks.quantize.export import export

        # What is left there is as large as the model, and a worker process may end by being killed.
        with quiet(), tempfile.TemporaryDirectory(prefix=_TEMPORARY) as cache_folder, _own_cache(cache_folder):
            model, products, made = self._model(source, recipe)
            before = finite_outputs(model, source.example_inputs, recipe.name)
            compile_package(export(model, source.example_inputs, source.domain.axes), folder / MODEL)
        found = int8_products(folder / MODEL)
        if found < products:
            raise QuantizationError(
                f'Of {products} products that the recipe "{recipe.name}" quantizes, Inductor computes only {found} in '
                "int8, and the others in float.",
                hint="Exclude modules until all are, or use torchscript or onnxruntime for it.",
            )
        refuse_other(before, finite_outputs(open_package(folder / MODEL), source.example_inputs, recipe.name), recipe)
        return made.model_copy(update={"size_bytes": (folder / MODEL).stat().st_size})

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Load the package; its loops and oneDNN's take torch's intra-op threads."""
        import torch

        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        return Opened(open_package(files.folder / MODEL))

    def _model(self, source: ModelSource, recipe: Recipe) -> tuple[nn.Module, int, Made]:
        """What is compiled, how many of its products must then be int8, and what became of its modules."""
        if isinstance(recipe, StaticRecipe):
            from tasks.quantize.pt2e import quantize_exported

            quantized = quantize_exported(source.float_model(), recipe, source)
            return quantized.model, quantized.products, Made(size_bytes=0, coverage=quantized.coverage, graph="pt2e")
        from tasks.quantize.converted import Structure, find_or_convert, open_converted

        converted = find_or_convert(source, recipe)
        structure = Structure.read(converted)
        return open_converted(converted), 0, Made(size_bytes=0, coverage=structure.coverage, graph=structure.graph)


def open_package(path: Path) -> Call:
    """Load a package."""
    import torch

    from tasks.quantize.engine import quiet

    with quiet():
        return torch._inductor.aoti_load_package(str(path))


def compile_package(program: ExportedProgram, path: Path) -> None:
    """Compile an exported model for this processor.

    Raises
    ------
    QuantizationError
        Inductor or the C++ compiler refuses it.
    """
    import torch
    from torch._inductor import config

    try:
        with torch.no_grad(), config.patch(OPTIONS):
            torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise QuantizationError(
            f"Inductor cannot compile the model: {first_line(error)}.", hint="Use torchscript or onnxruntime for it."
        ) from error


def int8_products(package: Path) -> int:
    """How many convolutions and matrix products of a package run in int8, counted in its C++ source."""
    with zipfile.ZipFile(package) as archive:
        sources = [archive.read(name) for name in archive.namelist() if name.endswith(".cpp")]
    return sum(len(_INT8_PRODUCT.findall(source)) for source in sources)


def refuse_other(before: Sequence[Tensor], after: Sequence[Tensor], recipe: Recipe) -> None:
    """Refuse, with a `QuantizationError`, a package whose outputs are not those of the module that was compiled.

    They are not the same to the bit: fused operations round less often, and in int8 a last digit moves an activation to
    the next of its steps. So the method's own tolerance holds, as it does for the bundle on another processor.
    """
    from tasks.quantize.converted import is_close

    share = METHODS[recipe.method].tolerance_share(recipe)
    if len(before) != len(after) or not all(is_close(*pair, share) for pair in zip(before, after, strict=True)):
        raise QuantizationError(
            f'The recipe "{recipe.name}" computes something else once it is compiled by Inductor.',
            hint="Use torchscript or onnxruntime for it, or exclude modules until it does not.",
        )


@cache
def _target() -> tuple[tuple[str, ...], str]:
    """The instructions that Inductor compiles for here, and the compiler's version.

    Raises
    ------
    ConfigurationError
        There is no C++ compiler.
    """
    from tasks.quantize.engine import quiet

    with quiet():
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.cpu_vec_isa import pick_vec_isa
        from torch._inductor.exc import InvalidCxxCompiler

    try:
        compiler = get_cpp_compiler()
        told = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True, check=True)
    except (InvalidCxxCompiler, OSError, subprocess.CalledProcessError) as error:
        raise ConfigurationError(
            'The runtime "aot-inductor" needs a C++ compiler, and found none.',
            hint="Install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or name one in CXX.",
        ) from error
    with quiet(), _own_cache(_kept_folder()):
        flags = pick_vec_isa().build_arch_flags().split()
    # The compiler says -mavx512vnni and -mamx-tile, the processor avx512_vnni and amx_tile.
    names = {f"-m{word.replace('_', '')}": word for word in _processor()}
    needed = (names.get(f"-m{flag[2:].replace('-', '')}", "") for flag in flags)
    return tuple(dict.fromkeys(filter(None, needed))), told.stdout.splitlines()[0]


def _processor() -> frozenset[str]:
    """Every word that Linux says of the processor, its instruction sets among them."""
    return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())


@contextmanager
def _own_cache(folder: str) -> Iterator[None]:
    """Let Inductor compile in `folder`, which nobody else can write, unless the user names one.

    Its default lies at a known path in the shared /tmp, where others could leave code to be run; torch writes it into
    the environment as soon as it asks for it.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    before = os.environ.get(_CACHE)
    if before not in (None, default_cache_dir()):
        yield
        return
    os.environ[_CACHE] = folder
    try:
        yield
    finally:
        del os.environ[_CACHE]


def _kept_folder() -> str:
    """Where the user's processes keep what compilers can do, which takes up to half a minute to try out."""
    try:
        folder = cache_base() / "inductor"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or none that can be written
        return tempfile.mkdtemp(prefix=_TEMPORARY)
    return str(folder)

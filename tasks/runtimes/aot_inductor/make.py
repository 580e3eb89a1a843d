"""Use Inductor to compile an exported model ahead of time for this kind of processor."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch._inductor import config
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.runtime.cache_dir_utils import temporary_cache_dir
from torch.export import ExportedProgram

from tasks.data.outputs import finite_outputs
from tasks.environment.libraries import quiet
from tasks.quantize.converted import KIND, Structure, find_or_convert, open_converted, refuse_other
from tasks.quantize.engine import instruction_set
from tasks.quantize.export import export
from tasks.quantize.int8_modules import align_for_aot_inductor
from tasks.quantize.operators import SUFFIX, compiler_version
from tasks.quantize.source import Converted, ModelSource, converter_of, refusing
from tasks.quantize.spec import Spec
from tasks.runtimes.aot_inductor.open import MODEL, open_package
from tasks.runtimes.base import Made, Maker

OPTIONS: dict[str, object] = {
    # Without freezing, int8 weights are not packed, and matrix products are silently computed in float
    # (pytorch/ao#4566).
    "freezing": True,
    # Compile only for the vector instructions that `target` names, not for all instructions of this processor.
    "cpp.march": "",
    # Without this option, the package would always use the number of threads that was set during compilation.
    "cpp.dynamic_threads": True,
    # By default, Inductor writes precompiled headers to a shared folder, even if the cache is private.
    "aot_inductor.precompile_headers": False,
}


class AotMaker(Maker):
    """A maker that quantizes or converts a model, and then exports and compiles it."""

    def environment(self) -> dict[str, object]:
        """Return the compiler's version and the instruction sets that the compiler may use."""
        return instruction_set() | {"compiler": compiler_version(), "instructions": list(target())}

    def shared(self, source: ModelSource, spec: Spec) -> dict[str, str]:
        """Find or build the converted module; return {} if the spec has an engine, because `make` then uses PT2E."""
        return {KIND: find_or_convert(source, spec).name} if spec.engine is None else {}

    def make(self, source: ModelSource, spec: Spec, folder: Path) -> Made:
        """Quantize or convert a model, compile it, and compare its outputs before and after compilation."""
        name = spec.name
        # Each cache is as large as a model, so delete it as soon as the model is compiled.
        with quiet(), tempfile.TemporaryDirectory() as cache_folder, temporary_cache_dir(cache_folder):
            quantized = _quantized(source, spec, folder)
            before = finite_outputs(quantized.model, source.example_inputs, name)
            compile_package(export(quantized.model, source.example_inputs, source.axes), folder / MODEL)
        # Fused operations round less often, which can move an int8 activation by one step.
        after = finite_outputs(open_package(folder / MODEL), source.example_inputs, name)
        refuse_other(before, after, spec.tolerance, spec, "compiling with Inductor")
        size_bytes = sum(path.stat().st_size for path in (folder / MODEL, *folder.glob(f"*{SUFFIX}")))
        return Made(size_bytes=size_bytes, coverage=quantized.coverage)


def _quantized(source: ModelSource, spec: Spec, folder: Path) -> Converted:
    """Return the module to compile, and copy the method's operator library, if any, to `folder`."""
    if spec.engine is None:
        converted = find_or_convert(source, spec)
        structure, model = Structure.read(converted), open_converted(converted)
        align_for_aot_inductor(model)
        for library in converted.glob(f"*{SUFFIX}"):
            shutil.copyfile(library, folder / library.name)
        return Converted(model, structure.coverage)
    from tasks.quantize.pt2e import export_trained, quantize_exported  # torchao takes seconds to import

    if spec.training is not None:
        return export_trained(converter_of(spec).train(spec, source), spec, source)
    return quantize_exported(spec, source)


def compile_package(program: ExportedProgram, path: Path) -> None:
    """Compile an exported model for this processor."""
    hint = "Use the torchscript or onnxruntime runtime for this recipe."
    with refusing("Inductor cannot compile the model", hint), torch.no_grad(), config.patch(OPTIONS):
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def instructions_for(spec: Spec) -> list[str]:
    """Return the instruction sets that a compiled model may use; static int8 models use VNNI if it is available.

    With VNNI, activations use all 8 bits; their products would saturate on a processor without VNNI.
    """
    words = processor()
    vnni = [name for name in ("avx512_vnni", "avx_vnni") if name in words][:1]
    return list(dict.fromkeys([*target(), *(vnni if "static" in spec.activations else [])]))


@cache
def target() -> tuple[str, ...]:
    """Return the instruction sets for which Inductor compiles on this host."""
    with quiet():
        flags = pick_vec_isa().build_arch_flags().split()
    # The compiler flags ``-mavx512vnni`` and ``-mamx-tile`` correspond to Linux's ``avx512_vnni`` and ``amx_tile``.
    names = {f"-m{word.replace('_', '')}": word for word in processor()}
    needed = (names.get(f"-m{flag[2:].replace('-', '')}", "") for flag in flags)
    return tuple(dict.fromkeys(filter(None, needed)))


def processor() -> frozenset[str]:
    """Return every word of ``/proc/cpuinfo``, including the names of the processor's instruction sets."""
    return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())

"""Runtime ``openvino``: the exported model as OpenVINO's IR, quantized by NNCF.

Precision is always stated: left alone, OpenVINO computes in bfloat16 where the processor can, and calls it float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from storage.documents import JsonObject
from storage.errors import QuantizationError
from tasks.machine import this_machine
from tasks.quantize.methods.cast import computes_bfloat16
from tasks.quantize.methods.qat import QatRecipe
from tasks.runtimes import onnx_model
from tasks.runtimes.base import CandidateFiles, Checker, Made, Opened, RawCall, RawTensor, Runtime
from tasks.runtimes.signal_stack import signal_stack_kept

if TYPE_CHECKING:
    from openvino import InferRequest, ProfilingInfo
    from torch import Tensor

    from tasks.quantize.source import ModelSource
    from tasks.runtimes.operators import Arithmetic, Operator
    from tasks.workload.recipe import Recipe

MODEL, WEIGHTS = "model.xml", "model.bin"
PRECISION = ["nightquant", "precision"]  # where the IR says what float operators compute in
# Of an output's range: runtimes round differently, and steps add up in deep models; garbage is further off.
_GARBAGE_SHARE = 0.3
_COMPRESSED = "FullyConnectedCompressed"  # with int8 weights, whose kernels are named after the output
_SHAPES = 4  # that stay compiled; an evaluation has a few, a benchmark one


def load_openvino(files: dict[str, bytes], manifest: JsonObject) -> RawCall:
    """Open ``model.xml`` and ``model.bin`` with openvino and numpy alone."""
    import numpy
    import openvino

    core = openvino.Core()
    name = manifest["model"]["file"]
    try:
        model = core.read_model(files[name], openvino.Tensor(numpy.frombuffer(files[name[:-3] + "bin"], numpy.uint8)))
        precision = model.get_rt_info(["nightquant", "precision"]).astype(str)
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})
    except RuntimeError as error:
        made_with = manifest["versions"].get("openvino")
        raise RuntimeError(
            f"openvino {openvino.__version__} cannot open the model, which was made with {made_with}: {error}"
        ) from error

    def call(inputs: list[RawTensor]) -> list[RawTensor]:
        arrays = [numpy.frombuffer(values, dtype).reshape(shape) for dtype, shape, values in inputs]
        result = compiled(arrays)
        outputs = [numpy.ascontiguousarray(result[index]) for index in range(len(compiled.outputs))]
        return [(str(output.dtype), list(output.shape), output.tobytes()) for output in outputs]

    return call


class OpenVino(Runtime):
    """Reads the exported model; a recipe's engine, graph mode and per-channel weights are torch's and have no say."""

    extra = "openvino"
    main_file = MODEL
    distributions = ("openvino", "nncf", *onnx_model.DISTRIBUTIONS)
    usage = """\
import openvino

core = openvino.Core()
model = core.read_model("{{ m.model.file }}")
# Fixed shapes are faster; left out, any length of the free axes is taken.
model.reshape({
{%- for each in m.model.inputs %}{{ loop.index0 }}: {{ each.shape }}{{ ", " if not loop.last }}{% endfor -%}
})
compiled = core.compile_model(model, "CPU", {
    "INFERENCE_PRECISION_HINT": model.get_rt_info(["nightquant", "precision"]).astype(str),
    "INFERENCE_NUM_THREADS": 1,
})
outputs = compiled([{{ m.model.inputs | map(attribute="name") | join(", ") }}])  # NumPy arrays
"""

    def checker(self) -> Checker:
        """Open the IR with openvino and numpy alone."""
        return load_openvino

    def obstacle(self, recipe: Recipe) -> str:
        """What NNCF cannot do for this runtime."""
        if recipe.method not in ("none", "dynamic", "static", "qat", "cast"):
            return f'it cannot carry out method "{recipe.method}"'
        if recipe.method == "dynamic" and (
            getattr(recipe, "dtype", "qint8") != "qint8" or getattr(recipe, "embedding_bits", None) == 4
        ):
            return "NNCF compresses weights to int8 only"
        return onnx_model.obstacle(recipe)

    def couples_rows(self, recipe: Recipe) -> bool:
        """Activations stay float where weights alone are int8."""
        return False

    def environment(self) -> dict[str, object]:
        """Versions, whether weights need a bit of headroom, and whether the rest may be computed in bfloat16."""
        return {**super().environment(), "vnni": this_machine().has_vnni, "bfloat16": computes_bfloat16()}

    def shared(self, source: ModelSource, recipe: Recipe) -> dict[str, str]:
        """The exported float or fine-tuned model."""
        return {onnx_model.KIND: onnx_model.find_or_export(source, recipe).name}

    def make(self, source: ModelSource, recipe: Recipe, folder: Path) -> Made:
        """Read the exported model, quantize it and write the IR; the size is that of both files."""
        from tasks.outputs import finite_outputs
        from tasks.quantize.coverage import cover, excluded_modules, leaves_of
        from tasks.quantize.engine import quiet
        from tasks.runtimes import openvino_quantize

        model = source.float_model()
        excluded = excluded_modules(model, recipe.exclude)
        with quiet():
            why_float = openvino_quantize.quantize(
                onnx_model.find_or_export(source, recipe) / onnx_model.MODEL, folder / MODEL, recipe, excluded, source
            )
        size = sum((folder / name).stat().st_size for name in (MODEL, WEIGHTS))
        outputs = finite_outputs(_open(folder / MODEL, 1), source.example_inputs, recipe.name)
        if isinstance(recipe, QatRecipe):
            _refuse_garbage(outputs, recipe, source)
        return Made(size_bytes=size, coverage=cover(leaves_of(model), why_float))

    def open(self, files: CandidateFiles, threads: int) -> Opened:
        """Compile, when a shape first comes, for that many threads, one stream, and the recipe's precision."""
        return Opened(_open(files.folder / MODEL, threads))

    def profile(
        self, files: CandidateFiles, opened: Opened, inputs: Sequence[Tensor], threads: int, calls: int
    ) -> list[Operator]:
        """By OpenVINO's performance counts: kernels' names say what they compute in (``brgconv_avx512_amx_I8``)."""
        from tasks.runtimes.operators import Operator, typical

        path, shapes = files.folder / MODEL, [tuple(each.shape) for each in inputs]
        rounds = files.recipe().method == "dynamic" and _rounds_activations(opened, path, threads, inputs)
        request, _ = _compile(path, threads, shapes, PERF_COUNT=True)
        operators = []
        for _ in range(calls):
            request.infer([each.numpy() for each in inputs])
            operators += [
                Operator(
                    name=node.node_name,
                    type=f"{node.node_type} ({node.exec_type})",
                    arithmetic="int8" if rounds and node.node_type == _COMPRESSED else _arithmetic(node),
                    seconds=node.real_time.total_seconds(),
                )
                for node in request.profiling_info
            ]
        return typical(operators)

    def reference(self, files: CandidateFiles, threads: int) -> Opened | None:
        """Without its low-precision transformations, a quantized IR is float operators between rounding ones.

        The setting is not documented: the plugin's own tests use it.
        """
        return Opened(_open(files.folder / MODEL, threads, LP_TRANSFORMS_MODE=False))


def _arithmetic(node: ProfilingInfo) -> Arithmetic:
    if node.node_type in ("Reorder", "Convert", "FakeQuantize"):
        return "convert"
    return "int8" if node.exec_type.lower().endswith(("_i8", "_u8")) else "float"


def _rounds_activations(opened: Opened, path: Path, threads: int, inputs: Sequence[Tensor]) -> bool:
    """Whether products with compressed weights round activations to int8 on this processor, which no count says.

    Told not to, they give other answers then.
    """
    import torch

    from tasks.outputs import tensors_of

    plain = _open(path, threads, DYNAMIC_QUANTIZATION_GROUP_SIZE=0)
    return not all(map(torch.equal, tensors_of(opened(*inputs)), plain(*inputs)))


def _refuse_garbage(outputs: Sequence[Tensor], recipe: QatRecipe, source: ModelSource) -> None:
    """Refuse what is far from the trained model, with a `QuantizationError`.

    OpenVINO 2026.4 gives zeros where a Linear layer takes several rows of a sample, rounded with a zero point.
    """
    from tasks.outputs import finite_outputs
    from tasks.quantize.converted import is_close
    from tasks.quantize.reference import reference_of

    expected = finite_outputs(reference_of(recipe, source).model, source.example_inputs, recipe.name)
    if not all(is_close(*pair, _GARBAGE_SHARE) for pair in zip(expected, outputs, strict=True)):
        raise QuantizationError(
            f'The recipe "{recipe.name}" computes something else once OpenVINO runs it.',
            hint="Exclude modules until it does not, or use onnxruntime or torchscript for it.",
        )


def _open(path: Path, threads: int, **more: object) -> Callable[..., tuple[Tensor, ...]]:
    """Compile for each shape of the inputs that comes: kernels for lengths that are known are faster by a fifth."""
    import openvino

    @lru_cache(maxsize=_SHAPES)
    def compiled_for(*shapes: tuple[int, ...]) -> tuple[InferRequest, range]:
        return _compile(path, threads, shapes, **more)

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        import torch

        request, outputs = compiled_for(*(tuple(tensor.shape) for tensor in inputs))
        # Handed to `infer` itself, they would cost as much again as a small operator: it looks at types and names.
        arrays = [tensor.contiguous().numpy() for tensor in inputs]
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
        request.infer(share_outputs=True)
        return tuple(torch.from_numpy(request.get_output_tensor(index).data.copy()) for index in outputs)

    return call


def _compile(path: Path, threads: int, shapes: Sequence[tuple[int, ...]], **more: object) -> tuple[InferRequest, range]:
    """A request for inputs of these shapes, and the numbers of its outputs."""
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    model.reshape({entry: list(shape) for entry, shape in zip(model.inputs, shapes, strict=True)})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # the process is pinned already
        "INFERENCE_PRECISION_HINT": model.get_rt_info(PRECISION).astype(str),
    }
    with signal_stack_kept():
        compiled = core.compile_model(model, "CPU", settings | more)
    return compiled.create_infer_request(), range(len(compiled.outputs))

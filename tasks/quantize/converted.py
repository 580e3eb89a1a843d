"""Convert torch modules, and store them without pickle, as artifacts that all torch runtimes share."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Self, cast

import torch
from safetensors.torch import load_file
from torch import ScriptObject, Tensor, nn

from storage.errors import QuantizationError
from tasks.data.outputs import finite_outputs, outputs_of
from tasks.data.tensor_files import save_tensors
from tasks.domains import build_model
from tasks.environment.sources import code_digest
from tasks.quantize.engine import RefusingReferenceLoops, instruction_set, running, without_deprecations
from tasks.quantize.operators import load_libraries
from tasks.quantize.source import ModelSource, converter_of, without_parametrizations
from tasks.quantize.spec import Spec
from tasks.values.refs import Architecture, Frozen, ModuleCoverage

KIND = "converted"
STRUCTURE, WEIGHTS = "structure.json", "weights.safetensors"

# Values of these types are not stored, because the spec determines the values.
_STRUCTURE = (type(None), bool, int, float, str, torch.dtype)
_ops = torch.ops.quantized

Parts = tuple[object, ...]


class Structure(Frozen):
    """A converted module without its tensors; ``architecture`` describes the float model."""

    spec: Spec
    architecture: Architecture
    example_inputs: dict[str, tuple[tuple[int, ...], str]]  # shape and dtype of each example input
    size_bytes: int  # size of a ``torch.save`` file that contains the state dict
    coverage: tuple[ModuleCoverage, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the structure of an artifact."""
        return cls.model_validate_json((folder / STRUCTURE).read_text(encoding="utf-8"))


def find_or_convert(source: ModelSource, spec: Spec) -> Path:
    """Apply a spec to a torch module, or reuse an earlier result; return the folder, whose name is the digest."""
    library = converter_of(spec).library(source.workspace)
    made_from = {
        **source.made_from,
        "spec": spec.content(),
        "instruction_set": instruction_set(),
        "conversion": code_digest(*source.code_of(spec), __name__),
    }
    if library is not None:
        made_from["library"] = library.parent.name
    return source.workspace.find_or_make(KIND, made_from, partial(_convert, source, spec, library))


def open_converted(folder: Path) -> nn.Module:
    """Rebuild a converted module for evaluation on the CPU, with weights packed for the current quantized engine."""
    structure = Structure.read(folder)
    load_libraries(folder)
    spec, model = structure.spec, without_parametrizations(build_model(structure.architecture).eval())
    examples = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype))
        for name, (shape, dtype) in structure.example_inputs.items()
    }
    with _quietly(spec):
        converter = converter_of(spec)
        rebuilt = converter.skeleton(model, spec, examples)
        load_flat_state(rebuilt, load_file(folder / WEIGHTS))
    return converter.pack(rebuilt).eval()


def refuse_other(before: Sequence[Tensor], after: Sequence[Tensor], fraction: float, spec: Spec, step: str) -> None:
    """Raise `QuantizationError` if `step` changed outputs by more than `fraction` of their range, or if 0, by a bit."""
    if len(before) != len(after) or not all(map(is_close, before, after, repeat(fraction))):
        raise QuantizationError(
            f'The outputs of the model changed after {step} with recipe "{spec.name}".',
            hint="Make the model's code independent of input values and of values that are not in its state dict.",
        )


def exactness(spec: Spec) -> float:
    """Return the tolerance for a saved model's outputs: 0, unless saving can fold batch norms."""
    return 0.0 if spec.engine is not None else spec.tolerance


def is_close(left: Tensor, right: Tensor, fraction: float) -> bool:
    """Return whether `left` and `right` differ by at most `fraction` of the range of `left`; return False for NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    low, high = left.double().aminmax()
    allowed = fraction * float(high - low or high.abs())
    return float((left.double() - right.double()).abs().max()) <= allowed


def _quietly(spec: Spec) -> AbstractContextManager[None]:
    """Silence deprecation warnings if the spec has an engine, because PyTorch has deprecated quantized engines."""
    return nullcontext() if spec.engine is None else without_deprecations()


def _convert(source: ModelSource, spec: Spec, library: Path | None, folder: Path) -> None:
    examples = source.example_inputs
    if library is not None:
        shutil.copyfile(library, folder / library.name)
        load_libraries(folder)
    with running(spec), _quietly(spec):
        converted = converter_of(spec).convert(source.float_model(), spec, source)
        with RefusingReferenceLoops():
            outputs = finite_outputs(converted.model, examples, spec.name)
        state, buffer = converted.model.state_dict(), io.BytesIO()
        save_tensors(flatten_state(state), folder / WEIGHTS)
        torch.save(state, buffer)
        structure = Structure(
            spec=spec,
            architecture=source.architecture,
            example_inputs={
                name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
                for name, tensor in examples.items()
            },
            size_bytes=buffer.getbuffer().nbytes,
            coverage=converted.coverage,
        )
        (folder / STRUCTURE).write_text(structure.model_dump_json(indent=1), encoding="utf-8")
        after = outputs_of(open_converted(folder), examples)
    refuse_other(outputs, after, exactness(spec), spec, "saving as plain tensors")


def flatten_state(state: Mapping[str, object]) -> dict[str, Tensor]:
    """Return a state dict's tensors by name, as plain, contiguous tensors without shared memory."""
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        _flatten(value, name, tensors)
    return tensors


def load_flat_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load a flattened state dict into a module, and pack the parameters for the current quantized engine."""
    # Do not copy the state dict, because a copy would lose `_metadata`, which contains the modules' layout versions.
    state = module.state_dict()
    for name, value in list(state.items()):
        state[name] = _rebuild(value, name, tensors)
    module.load_state_dict(state)


def _flatten(value: object, name: str, tensors: dict[str, Tensor]) -> None:
    match value:
        case Tensor(is_quantized=False):
            # Clone the tensor, because safetensors rejects tensors that share memory, such as tied weights.
            tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
        case Tensor() if value.dtype != torch.quint4x2:
            # A per-tensor scale is a scalar; per-channel scales are a vector.
            if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
                scales = torch.tensor(value.q_scale(), dtype=torch.float64)
                zero_points = torch.tensor(value.q_zero_point())
            else:
                scales, zero_points = value.q_per_channel_scales().clone(), value.q_per_channel_zero_points().clone()
            tensors |= {f"{name}.values": value.int_repr().contiguous(), f"{name}.scales": scales}
            tensors[f"{name}.zero_points"] = zero_points
        case tuple() | list():
            for index, item in enumerate(value):
                _flatten(item, f"{name}.{index}", tensors)
        case ScriptObject() if _class_of(value) in _PACKINGS:
            unpack, _ = _PACKINGS[_class_of(value)]
            _flatten(unpack(value), name, tensors)
        case _ if not isinstance(value, _STRUCTURE):
            kind = _class_of(value) if isinstance(value, ScriptObject) else type(value).__name__
            raise QuantizationError(
                f'The state dict entry "{name}" has the type {kind}, which nightquant cannot store.'
            )


def _rebuild(like: object, name: str, tensors: Mapping[str, Tensor]) -> object:
    """Rebuild the state dict's entry `name` from `tensors`; `like` is the entry of the same name in a new module."""
    match like:
        case Tensor(is_quantized=False):
            # Only QNNPACK packs a bias (all zeros) for a layer without a bias.
            is_missing_bias = name not in tensors and torch.backends.quantized.engine == "qnnpack" and not like.any()
            return like if is_missing_bias else tensors[name]
        case Tensor():
            values, scales, zero_points = (tensors[f"{name}.{part}"] for part in ("values", "scales", "zero_points"))
            if scales.dim() == 0:
                return torch._make_per_tensor_quantized_tensor(values, float(scales), int(zero_points))
            return torch._make_per_channel_quantized_tensor(values, scales, zero_points, like.q_per_channel_axis())
        case tuple() | list():
            return type(like)(_rebuild(item, f"{name}.{index}", tensors) for index, item in enumerate(like))
        case ScriptObject():
            unpack, pack = _PACKINGS[_class_of(like)]
            return pack(*(_rebuild(part, f"{name}.{index}", tensors) for index, part in enumerate(unpack(like))))
    return like


def _class_of(packed: ScriptObject) -> str:
    return str(packed._type().qualified_name()).rpartition(".")[2]


def _unpack_state(packed: ScriptObject) -> Parts:
    state, _ = cast(tuple[Parts, object], packed.__getstate__())
    return tuple(state)


def _pack_linear(weight: Tensor, bias: Tensor | None) -> object:
    # Only weights packed as float16 are unpacked to float.
    return _ops.linear_prepack(weight, bias) if weight.is_quantized else _ops.linear_prepack_fp16(weight, bias)


def _pack_cell(
    kind: str, tensors: list[Tensor], scales: list[float], integers: list[int], weights: list[ScriptObject]
) -> object:
    if kind == "quantized_fp16":
        return _ops.make_quantized_cell_params_fp16(*weights)
    (reduce_range,) = integers
    # Share the biases with the packed weights, because a file would otherwise contain each bias twice.
    biases = [_unpack_state(weight)[1] for weight in weights]
    return _ops.make_quantized_cell_params_dynamic(*weights, *biases, bool(reduce_range))


# The functions that unpack and pack each class of packed parameters.
_PACKINGS: dict[str, tuple[Callable[[ScriptObject], Parts], Callable[..., object]]] = {
    "LinearPackedParamsBase": (_unpack_state, _pack_linear),
    "CellParamsBase": (_unpack_state, _pack_cell),
}

"""The searches of NNCF, Neural Compressor and Olive, with which `benchmarks.search` compares nightquant's search.

Each peer follows its own documentation. It gets the float model, the calibration data and the selection split, and
writes one file. The score that a peer maximizes is positive, because two of the peers accept only a relative loss.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import peers
from benchmarks.search.subjects import obtained
from tasks.data.outputs import Call, tensors_of
from tasks.data.samples import load_samples
from tasks.data.tensor_files import Golden
from tasks.environment.libraries import in_one_line, quiet
from tasks.measure.benchmark.launch import load_candidate
from tasks.measure.benchmark.messages import Subject
from tasks.measure.benchmark.rounds import Loaded
from tasks.quantize.source import ModelSource
from tasks.quantize.spec import spec_of
from tasks.runtimes.build import model_source
from tasks.runtimes.onnx_model import MODEL, find_or_export

PEER = "peer"  # in place of a runtime, in the name of a peer's file

Item = tuple[tuple[Tensor, ...], Tensor]  # inputs, and the expected classes or words


@dataclass(frozen=True)
class Material:
    """What a peer gets; `tolerance` is the bound on quality as a fraction of the float model's score."""

    source: ModelSource
    exported: Path
    calibration: Sequence[tuple[Tensor, ...]]
    items: Sequence[Item]
    score: Callable[[Call, Iterable[Item]], float]
    tolerance: float
    folder: Path
    budget_s: float

    @classmethod
    def of(cls, workload: Path, store: Path, folder: Path, budget_s: float) -> Material:
        """Read the calibration and selection data, and export the float model."""
        job, workspace = obtained(workload, store)
        source, bound = model_source(job, workspace), job.workload.gate.max_quality_drop or 0.0
        model, is_words = source.float_model(), job.workload.domain == "language-model"
        if is_words:
            items = list(islice(_passages(load_samples(job.dataset, "valid", workspace.store)["tokens"], model), 200))
            calibration = [inputs for inputs, _ in items[:100]]
        else:
            read = load_samples
            if job.workload.domain == "text-encoder":
                from tasks.domains.text_encoder.domain import load_texts as read
            batches = read(job.dataset, "valid", workspace.store).batches(32)
            items = [(batch.inputs, batch.target) for batch in batches if batch.target is not None]
            calibration = list(islice(source.calibration_batches(1), 256))
        score = likelihood if is_words else accuracy
        tolerance = 1 - math.exp(-bound) if is_words else bound / score(model, items)
        exported = find_or_export(source, spec_of(job.workload.recipe_named(job.workload.baseline_name.recipe))) / MODEL
        return cls(source, exported, calibration, items, score, tolerance, folder, budget_s)


def _passages(tokens: Tensor, model: nn.Module, length: int = 25) -> Iterable[Item]:
    """Yield successive passages of a text with the float model's state before each of them."""
    layers, width = model.rnn.num_layers, model.rnn.hidden_size
    h = c = torch.zeros(layers, 1, width)
    for start in range(0, len(tokens) - length - 1, length):
        words = tokens[start : start + length].long()[:, None]
        yield (words, h, c), tokens[start + 1 : start + length + 1].long()
        with torch.inference_mode():
            _, h, c = model(words, h, c)
        h, c = h.clone(), c.clone()


@torch.no_grad()
def accuracy(call: Call, items: Iterable[Item]) -> float:
    """Return the percentage of right classes."""
    right = [(tensors_of(call(*inputs))[0].argmax(-1) == target).float() for inputs, target in items]
    return 100 * float(torch.cat(right).mean())


@torch.no_grad()
def likelihood(call: Call, items: Iterable[Item]) -> float:
    """Return 1 ÷ perplexity."""
    losses = [cross_entropy(tensors_of(call(*inputs))[0].flatten(0, -2), target) for inputs, target in items]
    return math.exp(-float(torch.stack(losses).mean()))


def nncf(material: Material) -> Path:
    """Quantize with NNCF's accuracy control: it returns the least sensitive layers to float until the drop is met."""
    import nncf as library
    import openvino

    def validate(compiled: Any, data: Iterable[Item]) -> tuple[float, None]:
        return material.score(lambda *inputs: _tensors(compiled(list(_arrays(inputs))).values()), data), None

    quantized = library.quantize_with_accuracy_control(
        openvino.Core().read_model(material.exported),
        calibration_dataset=library.Dataset(material.calibration, lambda inputs: list(_arrays(inputs))),
        validation_dataset=library.Dataset(material.items, lambda item: list(_arrays(item[0]))),
        validation_fn=validate,
        max_drop=material.tolerance,
        drop_type=library.DropType.RELATIVE,
    )
    openvino.save_model(quantized, material.folder / "model.xml", compress_to_fp16=False)
    return material.folder / "model.xml"


def neural_compressor(material: Material) -> Path:
    """Let Neural Compressor's autotune try static configurations until one is within the tolerable loss."""
    from neural_compressor.torch.export import export
    from neural_compressor.torch.quantization import StaticQuantConfig, TuningConfig, autotune

    # Sizes that differ between calls are open; torch would take a size of 1 for a constant.
    inputs, axes = material.source.example_inputs, material.source.axes
    examples = tuple(
        tensor.repeat(*(1 + (axis in axes.get(name, ())) for axis in range(tensor.dim())))
        for name, tensor in inputs.items()
    )
    shapes = tuple(dict.fromkeys(axes.get(name, ()), torch.export.Dim.AUTO) for name in inputs)
    exported = export(material.source.float_model(), examples, dynamic_shapes=shapes)

    def calibrate(model: Call) -> None:
        for batch in material.calibration:
            model(*batch)

    quantized = autotune(
        exported,
        TuningConfig([StaticQuantConfig.get_config_set_for_tuning()], tolerable_loss=material.tolerance),
        eval_fn=lambda model: material.score(model, material.items),
        run_fn=calibrate,
        example_inputs=examples,
    )
    program = torch.export.export(quantized, examples, dynamic_shapes=shapes)
    torch.export.save(program, material.folder / "model.pt2")
    return material.folder / "model.pt2"


def olive(material: Material) -> Path:
    """Let Olive search the settings of ONNX Runtime's quantizer, with a goal for quality; the frontier ignores goals.

    Version 0.13.0 cannot serialize a custom metric, so quality is one of Olive's own metrics.
    """
    # Olive sends usage data otherwise; a continuous integration host sends none.
    os.environ |= {"OLIVE_DISABLE_TELEMETRY": "1", "CI": "1"}
    from olive.data.registry import Registry
    from olive.workflows import run

    names, is_words = list(material.source.example_inputs), material.score is likelihood
    # For perplexity, Olive expects the words that the model reads, and shifts them itself.
    items = [(inputs, inputs[0].T if is_words else target) for inputs, target in material.items]
    sets = {
        "items": items,
        "calibration": [(inputs, inputs[0]) for inputs in material.calibration],
        "timed": [(tuple(material.source.example_inputs.values()), torch.zeros(1))],
    }
    data = []
    for name, samples in sets.items():
        found = [(dict(zip(names, inputs, strict=True)), target) for inputs, target in samples]
        Registry.register_dataset(f"search-{name}")(lambda found=found, **_: found)
        components = {"load_dataset": f"search-{name}", "dataloader": "no_auto_batch_dataloader"}
        components |= {"pre_process_data": "skip_pre_process", "post_process_data": "search-predictions"}
        data.append({"name": name} | {f"{part}_config": {"type": kind} for part, kind in components.items()})

    @Registry.register_post_process("search-predictions")
    def predictions(output: Any, **_: object) -> Tensor:
        logits: Tensor = output if isinstance(output, Tensor) else next(iter(output.values()))
        return logits.transpose(0, 1) if is_words else logits.argmax(-1)

    metric, classes = ("perplexity", {}) if is_words else ("accuracy_score", {"task": "multiclass", "num_classes": 100})
    allowed = material.tolerance / (1 - material.tolerance) if is_words else material.tolerance
    goal = {"type": "percent-max-degradation", "value": 100 * allowed}
    quality = {"name": metric, "priority": 2, "higher_is_better": not is_words, "goal": goal, "metric_config": classes}
    metrics = [
        {"name": "latency", "type": "latency", "data_config": "timed", "sub_types": [{"name": "avg", "priority": 1}]},
        {"name": "quality", "type": "accuracy", "data_config": "items", "sub_types": [quality]},
    ]
    sampler = {"sampler": "tpe", "sampler_config": {"seed": 0, "max_samples": 50}}
    result = run(
        {
            "input_model": {"type": "ONNXModel", "model_path": str(material.exported)},
            "data_configs": data,
            "passes": {"quantization": {"type": "OnnxQuantization", "data_config": "calibration"}},
            "evaluators": {"judge": {"type": "OnnxEvaluator", "metrics": metrics}},
            "search_strategy": {"execution_order": "joint", "max_time": int(0.6 * material.budget_s), **sampler},
            "evaluator": "judge",
            "cache_dir": str(material.folder / "cache"),
            "output_dir": str(material.folder / "olive"),
            "log_severity_level": 4,
        }
    )
    # The frontier is sorted by latency; take the fastest model that meets the goal.
    key, sign = f"quality-{metric}", 1 if is_words else -1
    worst = (1 + sign * allowed) * result.get_input_model_metrics()[key]["value"]
    models = result.get_output_models()
    meeting = [model for model in models if sign * (model.metrics_value[key]["value"] - worst) <= 0]
    if not models:
        raise ValueError("Olive's Pareto frontier contains no quantized model")
    return Path((meeting or models)[0].model_path)


PEERS: dict[str, tuple[str, Callable[[Material], Path]]] = {
    "NNCF accuracy control": ("nncf", nncf),
    "Neural Compressor autotune": ("neural_compressor", neural_compressor),
    "Olive search": ("olive", olive),
}


def run_peer(peer: str, workload: Path, store: Path, folder: Path, budget_s: float) -> tuple[Path | None, str]:
    """Run a peer in this process; return its file, or None and the reason."""
    package, search = PEERS[peer]
    if find_spec(package) is None:
        return None, "not installed"
    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    try:
        with quiet():
            return search(Material.of(workload, store, folder, budget_s)), ""
    except Exception as error:  # noqa: BLE001 - a peer may raise anything, and the table shows it
        return None, in_one_line(error)


def open_peer(path: Path) -> Call:
    """Open a peer's file for calls on one thread."""
    if path.suffix == ".onnx":
        return _onnxruntime(path)
    if path.suffix == ".xml":
        infer = peers.openvino(peers.openvino_model(path), "")
        return lambda *inputs: _tensors(infer(*inputs).values())
    with torch.inference_mode(mode=False), torch.no_grad(), quiet():
        import torchao.quantization.pt2e  # noqa: F401 - registers the file's operators
        from torch._inductor import config

        config.freezing = True  # as in the documentation of Neural Compressor
        return peers.without_gradients(torch.compile(torch.export.load(path).module()))


def load(subject: Subject) -> Loaded:
    """Open a candidate, or a peer's file, for a launch of `tasks.measure.benchmark.protocol.Session`."""
    if subject.name.runtime != PEER:
        return load_candidate(subject)
    inputs = Golden.read(Path(subject.golden)).inputs
    return Loaded(partial(open_peer(Path(subject.folder)), *inputs.values()))


def _onnxruntime(path: Path) -> Call:
    infer = peers.onnxruntime(path)
    return lambda *inputs: _tensors(infer(*inputs))


def _arrays(inputs: Iterable[Tensor]) -> Iterable[Any]:
    return (tensor.numpy() for tensor in inputs)


def _tensors(arrays: Any) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]

"""Whether weights fit the workload's model and its data set."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from storage.errors import InputError
from tasks.checkpoint.blank import build_blank
from tasks.models import build
from tasks.refs import DatasetRef
from tasks.workload import Workload
from tasks.workload.model import WordLanguageModelSpec


def check_fit(state: Mapping[str, Tensor], workload: Workload, dataset: DatasetRef) -> None:
    """Refuse a state dict whose keys or shapes are not those of the workload's model.

    Raises
    ------
    InputError
        In one message: every key that is missing, not expected, or of another shape, with both shapes.
    """
    model = build_blank(lambda: build(workload.model, dataset))
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    given = {key: tuple(tensor.shape) for key, tensor in state.items()}
    problems = [
        f"{key}: the checkpoint has {_shape(given.get(key))}, the workload {_shape(expected.get(key))}"
        for key in sorted(expected.keys() | given.keys())
        if given.get(key) != expected.get(key)
    ]
    if problems:
        raise InputError(
            f'The checkpoint does not fit workload "{workload.name}":\n  ' + "\n  ".join(problems) + "\n",
            hint=_hint(given, workload, dataset),
        )


def word_lm_dimensions(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int] | None:
    """Read a word language model's dimensions from the shapes in its state dict.

    Returns
    -------
    dict or None
        ``vocabulary``, ``embedding_size``, ``hidden_size`` and ``layers``; None where it is no such state dict.
    """
    encoder, decoder = shapes.get("encoder.weight", ()), shapes.get("decoder.weight", ())
    layers = sum(key.startswith("rnn.weight_hh_l") for key in shapes)
    if len(encoder) != 2 or len(decoder) != 2 or not layers:
        return None
    return {"vocabulary": encoder[0], "embedding_size": encoder[1], "hidden_size": decoder[1], "layers": layers}


def _shape(shape: tuple[int, ...] | None) -> str:
    return "no such key" if shape is None else str(list(shape))


def _hint(given: Mapping[str, tuple[int, ...]], workload: Workload, dataset: DatasetRef) -> str:
    dimensions = word_lm_dimensions(given)
    if dimensions is None or not isinstance(workload.model, WordLanguageModelSpec):
        return "Change [model] to what the checkpoint was made for, or name another checkpoint."
    hints = [
        f"set model.{key} = {value} (it is {getattr(workload.model, key)})"
        for key, value in dimensions.items()
        if key != "vocabulary" and value != getattr(workload.model, key)
    ]
    if dimensions["vocabulary"] != dataset.vocabulary:
        hints.append(
            f"use the corpus that it was trained on ({dimensions['vocabulary']} words; this one has "
            f"{dataset.vocabulary})"
        )
    return "To use this checkpoint, " + " and ".join(hints or ["give it the keys of the model"]) + "."

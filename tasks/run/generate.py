"""Sample text from a word language model, word by word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from storage.errors import ConfigurationError
from tasks.data.corpus import load_vocabulary
from tasks.data.outputs import Call, tensors_of
from tasks.domains.language_model import LanguageModelWorkload, WordLanguageModelSpec
from tasks.domains.language_model.domain import zero_state
from tasks.run.stages import obtain, prepare
from tasks.runtimes.build import build_candidate, open_candidate
from tasks.values.job import Workspace
from tasks.workload import Workload
from tasks.workload.recipe import Recipe

END_OF_LINE = "<eos>"


def sample_words(
    model: Call, vocabulary: Sequence[str], spec: WordLanguageModelSpec, *, words: int, temperature: float, seed: int
) -> Iterator[str]:
    """Sample words one at a time; each word is the model's next input, and the first is drawn uniformly.

    The next word is drawn with the weights ``exp(logits / temperature)``, as in the PyTorch tutorial "Dynamic
    Quantization on an LSTM Word Language Model".
    """
    generator = torch.Generator().manual_seed(seed)
    h, c = zero_state(spec, 1)
    token = torch.randint(len(vocabulary), (1, 1), generator=generator)
    for _ in range(words):
        # Leave inference mode after each word, because the caller's code runs before the next word.
        with torch.inference_mode():
            logits, h, c = tensors_of(model(token, h, c))
            token = torch.multinomial(word_weights(logits.flatten(), temperature), 1, generator=generator).view(1, 1)
        yield vocabulary[int(token)]


def word_weights(logits: Tensor, temperature: float) -> Tensor:
    """Return ``exp(logits / temperature)``, float64 [V], scaled to a maximum of 1 to avoid overflow."""
    return (logits.double() - logits.max()).div(temperature).exp()


def as_text(words: Iterator[str]) -> Iterator[str]:
    """Yield words as pieces of text, with spaces between words and a line break for `END_OF_LINE`."""
    line_started = False
    for word in words:
        if word == END_OF_LINE:
            yield "\n"
            line_started = False
        else:
            yield f" {word}" if line_started else word
            line_started = True


def generate(
    workload: Workload, recipe: Recipe, workspace: Workspace, *, words: int, temperature: float, seed: int
) -> Iterator[str]:
    """Build a recipe's missing artifacts, then sample text from the recipe's model in its last runtime."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ConfigurationError(
            f"The temperature is {temperature}, but must be a finite number above 0.",
            hint="Use 1.0 to sample from the model's unmodified distribution.",
        )
    if not isinstance(workload, LanguageModelWorkload):
        raise ConfigurationError(
            f'Workload "{workload.name}" (domain "{workload.domain}") does not generate text.',
            hint='Choose a workload whose domain is "language-model".',
        )
    dataset = prepare(workspace, workload)
    candidate = build_candidate(obtain(workspace, workload, dataset), recipe, recipe.runtimes[-1], workspace)
    model = open_candidate(candidate, workspace, torch.get_num_threads())
    vocabulary = load_vocabulary(dataset, workspace.store)
    return as_text(sample_words(model, vocabulary, workload.model, words=words, temperature=temperature, seed=seed))

"""One call for every architecture: the same numbers as transformers' own, for any length and any padding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from tasks.domains.text_encoder.network import Encoder
from tests.tasks.domains.text_encoder.encoders import CONFIGS, write_directory


def pair(folder: Path, kind: str) -> tuple[Encoder, torch.nn.Module]:
    write_directory(folder, kind)
    given = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    return Encoder(ours, "classification", "mean", False).eval(), given


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.slow
def test_logits_are_transformers_own_whatever_the_padding(tmp_path: Path, kind: str) -> None:
    encoder, given = pair(tmp_path, kind)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 20, (3, 11), generator=generator)
    mask = torch.ones_like(ids)
    ids[1, 4:], mask[1, 4:] = 0, 0
    with torch.inference_mode():
        expected = given(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(encoder(ids, mask), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(encoder(ids[1:2, :4], mask[1:2, :4]), expected[1:2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.slow
def test_vectors_do_not_see_the_padding(tmp_path: Path, pooling: str) -> None:
    write_directory(tmp_path, task="embedding")
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    encoder = Encoder(model, "embedding", pooling, True)  # type: ignore[arg-type]
    ids = torch.tensor([[2, 7, 9, 3]])
    padded, mask = torch.tensor([[2, 7, 9, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    with torch.inference_mode():
        alone, beside = encoder(ids, torch.ones_like(ids)), encoder(padded, mask)
    torch.testing.assert_close(alone, beside, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alone.norm(dim=1), torch.ones(1))

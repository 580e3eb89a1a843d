"""The workload files that come with word models: valid, and what the documentation says they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.workload import find_workloads, read_workload

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_built_in_language_model_is_the_tutorials_in_small() -> None:
    workload = find_workloads(["word-lm"], ROOT / "flows" / "workloads")[0]
    assert workload.domain == "language-model"
    assert workload.data.kind == "pydoc-topics"
    assert {"float/torchscript", "dynamic-int8/eager", "dynamic-int8/torchscript"} <= set(workload.candidates())


@pytest.mark.slow
def test_the_example_for_wikitext_selects_every_recipe() -> None:
    workload = read_workload(ROOT / "docs" / "examples" / "wikitext.toml")
    assert [recipe.name for recipe in workload.recipe] == [
        "float",
        "float-without-onednn",
        "dynamic-int8",
        "dynamic-int8-per-channel",
        "dynamic-int8-embedding8",
        "dynamic-int8-embedding4",
        "dynamic-float16",
        "int8-per-row",
    ]
    assert {"dynamic-int8/onnxruntime", "int8-per-row/aot-inductor"} <= set(workload.candidates())
    assert workload.model.model_dump() == {
        "kind": "word-lm", "embedding_size": 512, "hidden_size": 256, "layers": 5, "dropout": 0.5,
    }  # fmt: skip

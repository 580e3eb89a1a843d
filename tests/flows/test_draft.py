"""What a drafted workload file leaves out, and what it says about it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from flows.commands.init import render
from flows.draft import Asked, completed, sections, with_strict_gate, without_obstacles
from tasks.values.refs import ArtifactRef, CandidateRef
from tasks.values.results import CandidatePreview, Evaluation, Preview, Reference
from tasks.workload import validated


def drafted() -> dict[str, object]:
    folder = Path.cwd()
    return completed("photos", sections(Asked("resnet18", str(folder), folder)))


def previewed(document: dict[str, object]) -> Preview:
    """A preview in which every candidate was built."""
    names = [f"{recipe['name']}/{runtime}" for recipe in document["recipe"] for runtime in recipe["runtimes"]]
    return Preview(workload="photos", candidates=tuple(CandidatePreview(candidate=name) for name in names))


def referred(quality: float, constant: float | None, *, higher_is_better: bool = False) -> Preview:
    """A preview with a float model's quality in ``mae``."""
    of = {"recipe": "float", "runtime": "eager"}
    evaluation = Evaluation(
        **of, quality_metric="mae", quality=quality, quality_batched=quality, higher_is_better=higher_is_better,
        metrics={}, samples=128, outputs=ArtifactRef(kind="outputs", digest="a"), constant_quality=constant,
    )  # fmt: skip
    candidate = CandidateRef(**of, kind="candidate", digest="b", size_bytes=1)
    reference = Reference(candidate=candidate, row_s=0.1, evaluation=evaluation)
    return Preview(workload="photos", metric="mae", reference=reference)


@pytest.mark.parametrize(
    ("quality", "constant", "higher_is_better", "expected"),
    [
        (0.0, 250.0, False, ("absolute", 2.5)),
        (0.02, 0.01234, False, ("relative", 0.01)),  # worse than a constant answer
        (0.001, 0.01234, False, ("relative", 0.01)),
        (5.8e-8, None, False, ("relative", 0.01)),
        (1e-9, 0.5, True, ("relative", 0.01)),
    ],
)
def test_a_bound_relative_to_nearly_nothing_is_taken_from_a_constant_answer(
    quality: float, constant: float | None, higher_is_better: bool, expected: tuple[str, float]
) -> None:
    found = referred(quality, constant, higher_is_better=higher_is_better)
    document, reasons = with_strict_gate(drafted(), found)
    gate = document["gate"]
    assert (gate["quality_drop"], gate["max_quality_drop"]) == expected
    said = (
        f"the float model's mae of {quality:.2g} is nearly 0, so a candidate may lose 1% of {constant or 0:.3g}, the "
    )
    assert reasons["gate.max_quality_drop"].startswith(said) is (expected[0] == "absolute")


def test_the_file_says_why_a_recipe_is_not_in_it_and_why_a_value_was_chosen() -> None:
    document = drafted()
    document["data"] = {**document["data"], "image_size": 32}
    found = previewed(document)
    failed = tuple(
        each.model_copy(update={"obstacle": "no kernel"}) if each.candidate.recipe == "dynamic-int8" else each
        for each in found.candidates
    )
    found = found.model_copy(update={"candidates": failed})
    left = without_obstacles(document, found)
    reasons = {"data.image_size": "all 8 pictures are 32 x 32"}
    text = render(left, validated(Path("photos.toml"), left), found, reasons)
    assert [recipe["name"] for recipe in tomllib.loads(text)["recipe"]] == ["float", "static-int8"]
    assert "# Left out, dynamic-int8/torchscript: no kernel\n" in text
    assert "# Chosen: all 8 pictures are 32 x 32.\nimage_size = 32\n" in text


@pytest.mark.parametrize(
    ("metric", "is_percentage", "drop", "bound", "why"),
    [
        ("top1", True, "absolute", 0.5, "top1 is a percentage, and a candidate may lose at most half a point"),
        ("mse", False, "relative", 0.01, "a candidate may lose at most 1% of the baseline's mse"),
    ],
)
def test_the_gate_is_strict_in_points_of_a_percentage_and_else_in_shares(
    metric: str, is_percentage: bool, drop: str, bound: float, why: str
) -> None:
    document = drafted()
    found = previewed(document).model_copy(update={"metric": metric, "is_percentage": is_percentage})
    strict, reasons = with_strict_gate(without_obstacles(document, found), found)
    assert strict["gate"] == {"objective": "fastest", "quality_drop": drop, "max_quality_drop": bound}
    text = render(strict, validated(Path("photos.toml"), strict), found, reasons)
    assert f"# Chosen: {why}.\nmax_quality_drop = {bound}\n" in text

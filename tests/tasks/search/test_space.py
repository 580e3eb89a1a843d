"""The recipes that a search tries: which, in which order, and under which names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.environment.machine import Machine
from tasks.quantize.spec import excluding, renamed
from tasks.search.space import adopt, space, variants, without_too_large
from tasks.search.trial import Trial
from tasks.workload import Workload
from tasks.workload.recipe import METHODS, RUNTIMES, Recipe
from tests.tasks.quantize.conftest import IMAGES

CONVOLUTIONAL = {"Conv2d", "BatchNorm2d", "Linear"}
RECURRENT = {"LSTM", "Embedding", "Linear"}
TRANSFORMER = {"Embedding", "Linear", "LayerNorm"}
MACHINE = Machine(
    cpu="", architecture="x86_64", isa=(), processors=1, physical_cores=1, memory_bytes=1, system="", python="",
    libraries={}, product="",
)  # fmt: skip
WRITTEN = [
    {"name": "float", "method": "none", "runtimes": ["eager", "torchscript"]},
    {"name": "mine", "method": "dynamic", "runtimes": ["torchscript"], "modules": ["Linear"]},
]


def searched(recipe: list[dict[str, Any]] = WRITTEN, **search: Any) -> Workload:
    sections = {"recipe": recipe, "search": {"max_quality_drop": 1.0, **search}}
    return Workload.model_validate({**IMAGES, "benchmark": {"baseline": "float/eager"}, **sections})


def tried(trials: list[Trial]) -> list[str]:
    return [str(trial.name) for trial in trials if trial.outcome == "open"]


types = st.sampled_from([CONVOLUTIONAL, RECURRENT, TRANSFORMER])
restrictions = st.fixed_dictionaries(
    {},
    optional={
        "methods": st.lists(st.sampled_from(list(METHODS)), max_size=3),
        "runtimes": st.lists(st.sampled_from(list(RUNTIMES)), max_size=3),
        "exclude": st.lists(st.sampled_from(["a", "b.c"]), unique=True),
    },
)


@given(types=types, search=restrictions)
@settings(max_examples=30)
def test_every_trial_can_work_and_has_a_name_and_settings_of_its_own(types: set[str], search: dict[str, Any]) -> None:
    workload = searched(**search)
    trials = space(workload, types, MACHINE)
    assert trials == space(workload, frozenset(types), MACHINE)
    assert [trial.number for trial in trials] == list(range(1, len(trials) + 1))
    assert len({trial.name for trial in trials}) == len(trials)
    assert workload.baseline_name not in {trial.name for trial in trials}
    recipes: dict[str, dict[str, object]] = {}
    for trial in trials:
        assert not RUNTIMES[trial.runtime].obstacle(trial.recipe)
        assert recipes.setdefault(trial.recipe.name, trial.recipe.content()) == trial.recipe.content()
        if trial.origin == "space":
            assert Recipe.model_validate(trial.recipe.model_dump()) == trial.recipe
            assert trial.recipe.exclude == tuple(search.get("exclude", ()))
            assert not search.get("methods") or trial.recipe.method in search["methods"]
            assert not search.get("runtimes") or trial.runtime in search["runtimes"]
        for recipe in variants(workload, trial):
            assert Recipe.model_validate(recipe.model_dump()) == recipe
            assert recipes.setdefault(recipe.name, recipe.content()) == recipe.content()
    assert {name for name in recipes if name in ("float", "mine")} <= {"float", "mine"}


def test_written_recipes_come_first_then_the_methods_defaults() -> None:
    workload = searched()
    names = tried(space(workload, CONVOLUTIONAL, MACHINE))
    assert names[:2] == ["float/torchscript", "mine/torchscript"]
    assert names.index("static/torchscript") < names.index("static-onednn/torchscript")


def test_keys_for_absent_modules_are_not_varied() -> None:
    names = " ".join(tried(space(searched(), CONVOLUTIONAL, MACHINE)))
    assert "channels-last" in names
    assert "embedding" not in names
    names = " ".join(tried(space(searched(), RECURRENT, MACHINE)))
    assert "channels-last" not in names
    assert {"dynamic-embedding8/onnxruntime", "dynamic-embedding4/torchscript"} <= set(names.split())
    assert "dynamic-embedding4/onnxruntime" not in names.split()
    [gru] = {trial.recipe for trial in space(searched(methods=["dynamic"], runtimes=["torchscript"]), {"GRU"}, MACHINE)
             if trial.recipe.name == "dynamic-gru"}  # fmt: skip
    assert gru.model_dump()["modules"] == ("LSTM", "Linear", "GRU")
    assert not any(trial.recipe.method == "dynamic" for trial in space(searched(WRITTEN[:1]), {"Conv2d"}, MACHINE))


def test_training_and_undeployable_runtimes_are_tried_only_on_request() -> None:
    trials = space(searched(), CONVOLUTIONAL, MACHINE)
    assert not any(
        trial.recipe.method == "qat" or (trial.runtime == "eager" and trial.origin == "space") for trial in trials
    )
    asked = space(searched(methods=["qat"], runtimes=["eager"]), CONVOLUTIONAL, MACHINE)
    assert tried(asked) == ["float/torchscript", "mine/torchscript", "qat/eager", "qat-onednn/eager"]


def test_a_name_that_the_file_uses_for_other_settings_is_not_used_twice() -> None:
    recipes = [*WRITTEN, {"name": "static", "method": "static", "calibration_batches": 2, "runtimes": ["openvino"]}]
    workload = searched(recipes)
    trials = {str(trial.name): trial for trial in space(workload, CONVOLUTIONAL, MACHINE)}
    (other,) = [name for name in trials if name.startswith("static-") and name.endswith("/onnxruntime")]
    assert trials[other].recipe.model_dump()["calibration_batches"] == 8
    names = {recipe.name for recipe in variants(workload, trials["static/openvino"])}
    assert names.isdisjoint(recipe.name for recipe in variants(workload, trials[other]))


def test_variants_differ_in_observer_and_granularity_only_as_far_as_the_runtime_allows() -> None:
    workload = searched()
    trials = {str(trial.name): trial for trial in space(workload, CONVOLUTIONAL, MACHINE)}
    names = {recipe.name for recipe in variants(workload, trials["static/openvino"])}
    observers = {"static-min-max", "static-moving-average"}
    assert names == observers | {name.replace("static", "static-per-tensor") for name in ("static", *observers)}
    assert {recipe.name for recipe in variants(workload, trials["static/aot-inductor"])} == observers
    assert variants(workload, trials["float/openvino"]) == []


def test_recipes_with_layers_in_float_are_named_after_their_excluded_layers() -> None:
    recipe = searched().recipe_named("mine")
    linear = dict.fromkeys(("m0", "m1", "m2"), "Linear")
    one, two = (renamed(excluding(recipe, linear, count), "mine") for count in (1, 2))
    assert (one.exclude, two.exclude) == (("m0",), ("m0", "m1"))
    assert one.name.startswith("mine-float1-")
    assert two.name.startswith("mine-float2-")
    assert renamed(excluding(recipe, {"m1": "Linear"}, 1), "mine").name != one.name
    long = renamed(one, "a" * 63)
    assert Recipe.model_validate(long.model_dump()) == long


@pytest.mark.parametrize(("kinds", "bits"), [(("Embedding", "Linear"), None), (("Embedding", "Embedding"), 8)])
def test_without_a_quantized_embedding_the_bit_width_is_left_out(kinds: tuple[str, ...], bits: int | None) -> None:
    recipe = Recipe.model_validate({"name": "a", "method": "dynamic", "embedding_bits": 8})
    assert excluding(recipe, dict(zip("ab", kinds, strict=True)), 1).model_dump()["embedding_bits"] == bits


def test_finalists_join_the_workload_and_leave_the_written_recipes_as_they_are() -> None:
    workload = searched()
    trials = {str(trial.name): trial for trial in space(workload, CONVOLUTIONAL, MACHINE)}
    names = ["static/openvino", "mine/torchscript", "static/onnxruntime", "float/openvino"]
    adopted = adopt(workload, [trials[name] for name in names])
    assert [(recipe.name, recipe.runtimes) for recipe in adopted.recipe] == [
        ("float", ("eager", "torchscript", "openvino")),
        ("mine", ("torchscript",)),
        ("static", ("openvino", "onnxruntime")),
    ]
    assert Workload.model_validate(adopted.model_dump(by_alias=False)).candidates() == adopted.candidates()


@pytest.mark.parametrize(
    ("recipe", "max_bytes", "outcome"),
    [
        ({"method": "none"}, 89, "dropped"), ({"method": "none"}, 91, "open"), ({"method": "cast"}, 44, "dropped"),
        ({"method": "cast"}, 46, "open"), ({"method": "dynamic"}, 1, "open"),
    ],
)  # fmt: skip
def test_a_recipe_whose_weights_exceed_the_bound_is_dropped(
    recipe: dict[str, str], max_bytes: float, outcome: str
) -> None:
    trial = Trial(number=1, recipe=Recipe.model_validate({"name": "r", **recipe}), runtime="openvino", origin="space")
    (found,) = without_too_large([trial], 100, max_bytes)
    assert (found.outcome, bool(found.reason)) == (outcome, outcome == "dropped")

"""The recipes that a search can try (combinations of the methods' axis values), and their possible runtimes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, get_args

from storage.digest import canonical_json, digest_of
from storage.errors import UnavailableError
from tasks.environment.machine import Machine
from tasks.quantize.spec import renamed, spec_of
from tasks.runtimes.base import runtime_named
from tasks.search.trial import Trial
from tasks.workload.gate import Search
from tasks.workload.recipe import METHODS, RUNTIMES, Need, Recipe
from tasks.workload.workload import Workload

_LEAST = 0.9  # files contain more than weights, so float files of different runtimes differ by a few percent
_SHARES = {"float32": 1.0, "bfloat16": 0.5}  # size of the weights as a fraction of their size in float32
_WORDS: Mapping[tuple[str, object], str] = {
    ("per_channel", True): "per-channel",
    ("onednn", False): "without-onednn",
    ("embedding_bits", 4): "embedding4",
    ("embedding_bits", 8): "embedding8",
}


def space(workload: Workload, module_types: Collection[str], machine: Machine) -> list[Trial]:
    """Return the trials of a workload with a ``[search]`` section, in the order in which to try them.

    The workload file's recipes come first. The rest are sorted by the number of non-default settings; float32 trials
    and runtimes that compile come later, and dropped trials last. `module_types` are the types of the parameterized
    modules in the float model.
    """
    search = workload.search or Search()
    pairs = [(recipe, runtime, "written") for recipe in workload.recipe for runtime in recipe.runtimes]
    usual = _engines(machine)[0]
    for recipe in _recipes(workload, module_types, machine):
        for runtime in search.runtimes or [name for name in RUNTIMES if RUNTIMES[name].hands_over]:
            runs = spec_of(recipe).engine in (None, usual) or runtime_named(runtime).runs_engine
            if runs and not RUNTIMES[runtime].obstacle(recipe):
                pairs.append((recipe.model_copy(update={"runtimes": (runtime,)}), runtime, "space"))
    combinations = {(recipe.method, runtime) for recipe, runtime, _ in pairs}
    reasons = {combination: _obstacle(workload, search, *combination) for combination in combinations}
    trials: dict[str, Trial] = {}
    for recipe, runtime, origin in pairs:
        reason = reasons[recipe.method, runtime]
        trial = Trial(
            number=1,
            recipe=recipe,
            runtime=runtime,
            origin=origin,
            outcome="dropped" if reason else "open",
            reason=reason,
        )
        trials.setdefault(canonical_json([recipe.content(), runtime]), trial)
    found = [trial for trial in trials.values() if trial.name != workload.baseline_name]

    def order(trial: Trial) -> tuple[bool, bool]:
        return trial.outcome == "dropped", trial.origin == "space" and runtime_named(trial.runtime).compiles

    found.sort(key=order)  # Python's sort is stable, so trials with equal keys keep their order
    return [trial.model_copy(update={"number": number}) for number, trial in enumerate(found, start=1)]


def without_too_large(trials: Sequence[Trial], baseline_bytes: int, max_bytes: float) -> list[Trial]:
    """Mark open trials as dropped if their recipes do not quantize and exceed `max_bytes`."""
    found = []
    for trial in trials:
        spec = spec_of(trial.recipe)
        # The size of a quantized candidate is unknown, because it depends on the layers that the runtime supports.
        least = 0.0 if spec.layers else _LEAST * baseline_bytes * _SHARES[spec.arithmetic]
        if trial.outcome == "open" and least > max_bytes:
            reason = f"{spec.arithmetic} weights need at least {least:,.0f} bytes, but at most {max_bytes:,.0f}"
            trial = trial.model_copy(update={"outcome": "dropped", "reason": f"{reason} are allowed"})
        found.append(trial)
    return found


def variants(workload: Workload, trial: Trial) -> list[Recipe]:
    """Return recipes that are as fast as the trial's recipe, but have other observers or granularities."""
    axes = [axis for axis in trial.recipe.axes if axis.same_speed]
    found = []
    for values in product(*(axis.values for axis in axes)):
        changes = dict(zip((axis.key for axis in axes), values, strict=True))
        recipe = trial.recipe.model_copy(update={**changes, "runtimes": (trial.runtime,)})
        if recipe.content() != trial.recipe.content() and not RUNTIMES[trial.runtime].obstacle(recipe):
            found.append(_named(workload, recipe))
    return found


def adopt(workload: Workload, finalists: Sequence[Trial]) -> Workload:
    """Return the workload with the finalists' recipes added after the recipes from the workload file."""
    recipes = {recipe.name: recipe for recipe in workload.recipe}
    for trial in finalists:
        recipe = recipes.get(trial.recipe.name, trial.recipe.model_copy(update={"runtimes": ()}))
        if trial.runtime not in recipe.runtimes:
            recipe = recipe.model_copy(update={"runtimes": (*recipe.runtimes, trial.runtime)})
        recipes[recipe.name] = recipe
    return workload.model_copy(update={"recipe": tuple(recipes.values())})


def _recipes(workload: Workload, module_types: Collection[str], machine: Machine) -> Iterator[Recipe]:
    """Return recipes without runtimes, sorted by the number of non-default settings; float32 recipes come last."""
    search, found = workload.search or Search(), []
    for name in METHODS:
        method = METHODS[name]
        if name not in search.methods if search.methods else _is_left_out(workload, method.needs):
            continue
        settings: dict[str, Any] = {"name": name, "method": name, "runtimes": (), "exclude": search.exclude}
        if modules := method.model_fields.get("modules"):
            types = [kind for kind in _choices(modules.annotation) if kind in module_types]
            if not types:
                continue
            settings["modules"] = tuple(dict.fromkeys((*modules.default, *types)))
        axes = {}
        for axis in method.axes:
            if not axis.types or not axis.types.isdisjoint(module_types):
                values = _engines(machine) if axis.key == "engine" else axis.values
                axes[axis.key] = values[:1] if axis.same_speed else values
        for places in product(*(range(len(values)) for values in axes.values())):
            chosen = {key: axes[key][place] for key, place in zip(axes, places, strict=True)}
            recipe = method.model_construct(**(settings | chosen))
            spec = spec_of(recipe)
            order = not spec.layers and spec.arithmetic == "float32", sum(map(bool, places))
            found.append((order, _named(workload, recipe)))
    return (recipe for _, recipe in sorted(found, key=lambda pair: pair[0]))


def _choices(annotation: object) -> tuple[str, ...]:
    """Return the strings of a type such as ``tuple[Literal["LSTM", "Linear"], ...]``."""
    return get_args(get_args(annotation)[0])


def _engines(machine: Machine) -> tuple[object, ...]:
    """Return the engines that have kernels for a machine's architecture; the usual engine comes first."""
    return ("x86", "onednn") if machine.architecture == "x86_64" else ("qnnpack", "onednn")


def _is_left_out(workload: Workload, needs: tuple[Need, ...]) -> bool:
    """Return whether a method trains or needs a feature that the domain lacks, so that it is tried only on request."""
    return "fine-tuning" in needs or any(workload.missing(need) for need in needs)


def _obstacle(workload: Workload, search: Search, method: str, runtime: str) -> str:
    """Return the reason that a method's trials in a runtime cannot work or win, or ``""`` if no such reason exists."""
    if misfit := workload.misfit(METHODS[method].needs):
        return misfit
    if not RUNTIMES[runtime].hands_over and runtime not in search.runtimes:
        return f"{runtime} candidates are never deployed"
    try:
        runtime_named(runtime).require_installed(runtime)
    except UnavailableError as error:
        return str(error)
    return ""


def _named(workload: Workload, recipe: Recipe) -> Recipe:
    """Return a recipe with a name that depends only on its settings and on the names in the workload file."""
    spec, fields = spec_of(recipe), type(recipe).model_fields
    axes = [axis.key for axis in recipe.axes]
    words = [recipe.method if spec.layers else "float" if spec.arithmetic == "float32" else spec.arithmetic]
    for key in axes:
        value = getattr(recipe, key)
        words += [_WORDS.get((key, value), str(value))] if value != fields[key].default else []
    types, usual = getattr(recipe, "modules", ()), fields["modules"].default if "modules" in fields else ()
    words += [kind.lower() for kind in types if kind not in usual]
    others = fields.keys() - {"name", "method", "runtimes", "exclude", "modules", *axes}
    is_usual = all(getattr(recipe, key) == fields[key].default for key in others) and set(usual) <= set(types)
    name = "-".join(words)
    if not is_usual or name in {other.name for other in workload.recipe if other.content() != recipe.content()}:
        name += f"-{digest_of(recipe.content())[:4]}"
    return renamed(recipe, name)

"""Request for a nightly run, which Prefect's UI shows as a form, and the summary of its result."""

from __future__ import annotations

from datetime import date

from pydantic import Field

from flows import BUILT_IN
from storage.errors import ConfigurationError, did_you_mean
from storage.results import Profile
from tasks.refs import Frozen
from tasks.workload import Workload, find_workloads


class NightlyRequest(Frozen):
    """Parameters of a nightly run; the settings supply those that are left out."""

    workloads: tuple[str, ...] = Field(
        default=(), title="Workloads", description="Built-in workloads or TOML files; empty: all built-in workloads"
    )
    recipes: tuple[str, ...] = Field(
        default=(), title="Recipes", description="Run only these recipes and the baseline's; empty: all recipes"
    )
    profile: Profile | None = Field(
        default=None, title="Profile", description="How long to measure; empty: as in the settings"
    )
    night: date | None = Field(default=None, title="Night", description="Date of the night; empty: today")
    store: str | None = Field(default=None, title="Store", description="Root of the store; empty: as in the settings")

    def load_workloads(self) -> list[Workload]:
        """Read, validate and narrow the workloads to the recipes asked for.

        Raises
        ------
        ConfigurationError
            A workload is unknown or invalid, or no workload has the recipe.
        """
        workloads = find_workloads(self.workloads, BUILT_IN)
        if not self.recipes:
            return workloads
        known = {recipe.name for workload in workloads for recipe in workload.recipe}
        for name in self.recipes:
            if name not in known:
                raise ConfigurationError(
                    f'Unknown recipe "{name}"{did_you_mean(name, known)}.',
                    hint=f"These workloads have the recipes {', '.join(sorted(known))}.",
                )
        narrowed = []
        for workload in workloads:
            chosen = tuple(item for item in workload.recipe if item.name in (*self.recipes, workload.baseline()[0]))
            if any(item.name in self.recipes for item in chosen):
                narrowed.append(workload.model_copy(update={"recipe": chosen}))
        return narrowed


class NightSummary(Frozen):
    """Result of a nightly flow run, which the command line prints.

    ``exit_code`` is 1 if some work failed, 3 if a regression was found and nothing failed, and 0 otherwise. Failures
    come first because a failure may cause a regression. ``report`` is the URL of the report, "" if it was not written.
    ``trouble`` describes disturbances of the benchmarks. ``busy_s`` is the wall time in which at least one stage ran.
    """

    run_id: str
    night: date
    store: str
    message: str
    exit_code: int
    bundles: tuple[str, ...]
    report: str = ""
    trouble: tuple[str, ...] = ()
    findings: tuple[str, ...]
    wall_s: float
    busy_s: float
    benchmark_wall_s: float
    benchmark_timed_s: float

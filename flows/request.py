"""A nightly run from outside: what it is asked to do, as a form in Prefect's UI, and what it came to."""

from __future__ import annotations

from datetime import date

from pydantic import Field

from flows import BUILT_IN
from storage.errors import ConfigurationError, did_you_mean
from storage.results import Profile
from tasks.refs import Frozen
from tasks.workload import Workload, find_workloads


class NightlyRequest(Frozen):
    """A nightly run's parameters; whatever is left out comes from the settings."""

    workloads: tuple[str, ...] = Field(
        default=(), title="Workloads", description="Names of built-in workloads or TOML files; none: every built-in one"
    )
    recipes: tuple[str, ...] = Field(
        default=(), title="Recipes", description="Only these recipes (the baseline's is always run); none: all"
    )
    profile: Profile | None = Field(
        default=None, title="Profile", description="How long to measure; none: as the settings say"
    )
    night: date | None = Field(default=None, title="Night", description="The date the run counts for; none: today")
    store: str | None = Field(default=None, title="Store", description="The store's root; none: as the settings say")

    def load_workloads(self) -> list[Workload]:
        """Read, validate and narrow the workloads to the recipes asked for.

        Raises
        ------
        ConfigurationError
            A workload is unknown or wrong, or a recipe is in none of them.
        """
        workloads = find_workloads(self.workloads, BUILT_IN)
        if not self.recipes:
            return workloads
        known = {recipe.name for workload in workloads for recipe in workload.recipe}
        for name in self.recipes:
            if name not in known:
                raise ConfigurationError(
                    f'Unknown recipe "{name}"{did_you_mean(name, known)}.',
                    hint=f"These workloads have: {', '.join(sorted(known))}.",
                )
        narrowed = []
        for workload in workloads:
            kept = tuple(item for item in workload.recipe if item.name in (*self.recipes, workload.baseline()[0]))
            if any(item.name in self.recipes for item in kept):
                narrowed.append(workload.model_copy(update={"recipe": kept}))
        return narrowed


class NightSummary(Frozen):
    """What a run came to: the flow run's result, which the command line prints.

    ``exit_code`` is 1 if some work failed, 3 if a regression was found and nothing failed (fix what failed first: the
    regression may only be its shadow), 0 otherwise. ``report`` is the URL of the report, "" if it was not written.
    ``trouble`` says what disturbed the benchmarks. ``busy_s`` is the wall time in which a stage ran.
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

"""Request for a nightly run, shown as a form in Prefect's UI, and the summary of the run's result."""

from __future__ import annotations

from datetime import date

from pydantic import Field

from flows import BUILT_IN
from storage.errors import ConfigurationError, did_you_mean
from storage.results import Profile
from tasks.refs import Frozen
from tasks.workload import Workload, find_workloads


class NightlyRequest(Frozen):
    """Parameters of a nightly run; defaults for omitted parameters come from the settings."""

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
        """Read and validate the workloads; keep only the requested recipes and the baselines.

        Raises
        ------
        ConfigurationError
            A workload is unknown or invalid, or a requested recipe does not exist.
        """
        workloads = find_workloads(self.workloads, BUILT_IN)
        if not self.recipes:
            return workloads
        known = {recipe.name for workload in workloads for recipe in workload.recipe}
        for name in self.recipes:
            if name not in known:
                raise ConfigurationError(
                    f'Unknown recipe "{name}"{did_you_mean(name, known)}.',
                    hint=f"The selected workloads have the recipes {', '.join(sorted(known))}.",
                )
        narrowed = []
        for workload in workloads:
            chosen = tuple(item for item in workload.recipe if item.name in (*self.recipes, workload.baseline()[0]))
            if any(item.name in self.recipes for item in chosen):
                narrowed.append(workload.model_copy(update={"recipe": chosen}))
        return narrowed


class NightSummary(Frozen):
    """Summary of a nightly flow run, printed by the command line.

    ``exit_code`` is 1 if anything failed, 3 if nothing failed but a regression was found, and 0 otherwise. Code 1
    takes precedence because a failure may cause a regression. ``report`` is the URL of the report, or ``""`` if no
    report was written. ``trouble`` describes what disturbed the benchmarks. ``busy_s`` is the wall time during which at
    least one stage ran.
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

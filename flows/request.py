"""Requests for a nightly run or a search, and their results; Prefect's UI shows each request as a form."""

from __future__ import annotations

from datetime import date

from pydantic import Field, PositiveFloat

from flows import BUILT_IN
from storage.errors import ConfigurationError, did_you_mean
from storage.humanize import plural
from storage.results import Profile, Row
from tasks.search.trial import Trial
from tasks.values.refs import Frozen
from tasks.values.results import RunInfo
from tasks.workload import Workload, find_workloads
from tasks.workload.gate import Goal, Search
from tasks.workload.recipe import CandidateName


class NightlyRequest(Frozen):
    """Parameters of a nightly run; defaults for omitted parameters come from the settings."""

    workloads: tuple[str, ...] = Field(
        default=(), description="Built-in workloads or TOML files; empty: all built-in workloads"
    )
    recipes: tuple[str, ...] = Field(
        default=(), description="Run only these recipes and the baseline's; empty: all recipes"
    )
    profile: Profile | None = Field(default=None, description="How long to measure; empty: as in the settings")
    night: date | None = Field(default=None, description="Date of the night; empty: the scheduled date, or today")
    store: str | None = Field(default=None, description="Root of the store; empty: as in the settings")

    def load_workloads(self) -> list[Workload]:
        """Read and validate the workloads; keep only the requested recipes and the baselines."""
        workloads = find_workloads(self.workloads, BUILT_IN)
        if not self.recipes:
            return [workload.with_twins() for workload in workloads]
        known = {recipe.name for workload in workloads for recipe in workload.recipe}
        for name in self.recipes:
            if name not in known:
                raise ConfigurationError(
                    f'The selected workloads do not have a recipe "{name}"{did_you_mean(name, known)}.',
                    hint=f"Choose one of these recipes: {', '.join(sorted(known))}.",
                )
        narrowed = []
        for workload in workloads:
            # Any float candidate may be the baseline if the file does not name one.
            kept = {*self.recipes, workload.baseline_name.recipe}
            kept |= {name.recipe for name in workload.floats()} if workload.chooses_baseline else set()
            chosen = tuple(item for item in workload.recipe if item.name in kept)
            if any(item.name in self.recipes for item in chosen):
                narrowed.append(workload.model_copy(update={"recipe": chosen}).with_twins())
        return narrowed


class SearchRequest(Frozen):
    """Parameters of a search for recipes; defaults for omitted parameters come from the settings and the workload."""

    workload: str = Field(description="Built-in workload or TOML file")
    budget_s: PositiveFloat | None = Field(
        default=None, description="Wall time to spend, in seconds; empty: as in the workload"
    )
    store: str | None = Field(default=None, description="Root of the store; empty: as in the settings")

    def load_workload(self) -> Workload:
        """Read and validate the workload; if it lacks a ``[search]`` section, add a section with default values."""
        (workload,) = find_workloads((self.workload,), BUILT_IN)
        if workload.search is not None:
            return workload
        if workload.gate.max_quality_drop is None:
            raise ConfigurationError(
                f'Workload "{workload.name}" does not limit the quality loss.',
                hint="Set max_quality_drop in the [search] or [gate] section.",
            )
        return workload.model_copy(update={"search": Search()})


class SearchResult(Frozen):
    """The outcome of a search."""

    workload: str
    goal: Goal
    split: str
    fingerprint: str
    trials: tuple[Trial, ...]
    finalists: tuple[Trial, ...]
    budget_s: float
    spent_s: float
    undecided: int = 0
    ended: str
    stopped_by: int = 0

    def measured(self) -> list[Trial]:
        """Return the trials that were built."""
        return [trial for trial in self.trials if trial.size_bytes is not None]

    def comparisons(self) -> dict[CandidateName, int]:
        """Map each finalist that the search created to the number of intervals that must hold simultaneously."""
        return {trial.name: len(self.finalists) for trial in self.finalists if trial.origin != "written"}

    def rows(self, run: RunInfo) -> list[Row]:
        """Return the rows of the ``trials`` table."""
        goal = self.goal
        shared = {"quality_bound": goal.max_quality_drop, "objective": goal.objective}
        rows = [trial.row(run, self.workload, self.split, goal.quality_unit, self.fingerprint) for trial in self.trials]
        return [{**row, **shared} for row in rows]

    def describe(self) -> str:
        """Describe the search in one line."""
        measured = self.measured()
        known = sum(trial.known for trial in measured)
        tried = plural(len(measured), "trial") + (f" ({known} known from an earlier search)" if known else "")
        spent = f"{self.spent_s:.0f} s of {self.budget_s:.0f} s"
        chosen = plural(len(self.finalists), "finalist")
        return f"the search spent {spent} on {tried} and chose {chosen}; {self.ended}"


class NightSummary(Frozen):
    """Summary of a nightly flow run, printed by the command line."""

    run_id: str
    night: date
    store: str
    message: str
    remarks: tuple[str, ...] = ()
    exit_code: int
    bundles: tuple[str, ...]
    report: str = ""
    findings: tuple[str, ...]

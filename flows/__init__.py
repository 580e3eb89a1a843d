"""Orchestration: the Prefect flows, the command line and the built-in workload files."""

from pathlib import Path

BUILT_IN = Path(__file__).parent / "workloads"

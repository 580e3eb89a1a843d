"""Workload files and their schema; imports neither torch nor prefect."""

from tasks.workload.loading import find_workloads, read_workload
from tasks.workload.workload import Purpose, Verdict, Workload

__all__ = ["Purpose", "Verdict", "Workload", "find_workloads", "read_workload"]

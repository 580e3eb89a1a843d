"""Workload files and their schema; imports neither torch nor prefect."""

from tasks.workload.loading import find_workloads, read_workload
from tasks.workload.workload import Workload

__all__ = ["Workload", "find_workloads", "read_workload"]

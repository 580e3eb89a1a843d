"""Workloads made in a line, for tests."""

from __future__ import annotations

from typing import Any

from tasks.workload import Workload


def workload_of(
    domain: str, data: dict[str, Any], model: dict[str, Any], checkpoint: dict[str, Any], **sections: Any
) -> Workload:
    """A workload with the float recipe only, unless `sections` have others."""
    return Workload.model_validate(
        {
            "schema_version": 1,
            "name": "tested",
            "description": "",
            "domain": domain,
            "data": data,
            "model": model,
            "checkpoint": checkpoint,
            "recipe": [{"name": "float", "method": "none"}],
            **sections,
        }
    )

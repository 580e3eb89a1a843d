"""Domains: each subpackage provides the data, models, training and metrics for one kind of work."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from tasks.workload.workload import DOMAINS

if TYPE_CHECKING:
    from torch import nn

    from tasks.domains.base import Domain
    from tasks.values.refs import Architecture
    from tasks.workload.base import Kind
    from tasks.workload.workload import Workload


def domain_named(name: str) -> Domain[Workload, Kind]:
    """Import a domain, including torch, and create an instance."""
    domain: Domain[Workload, Kind] = resolve_name(DOMAINS[name].implementation)()
    return domain


def build_model(architecture: Architecture) -> nn.Module:
    """Build a float model with random weights from torch's global generator."""
    section = DOMAINS[architecture.domain].parse_model(architecture.model, architecture.folder)
    return domain_named(architecture.domain).build(section, architecture.dataset)

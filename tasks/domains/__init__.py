"""Domains: the kinds of work, each with its data, models, training and metrics. One folder and one line here each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.registry import Registry

if TYPE_CHECKING:
    from tasks.domains.base import Domain
    from tasks.workload.base import Kind
    from tasks.workload.workload import Workload

DOMAINS: Registry[Domain[Workload, Kind]] = Registry(
    "domain",
    {
        "language-model": "tasks.domains.language_model:LanguageModel",
        "sequence": "tasks.domains.sequence:Sequence",
        "image-classification": "tasks.domains.image_classification:ImageClassification",
        "text-encoder": "tasks.domains.text_encoder:TextEncoder",
        "custom": "tasks.domains.custom:Custom",
    },
)

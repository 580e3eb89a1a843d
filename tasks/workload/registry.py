"""Registries of nightquant's extensions, whose classes are imported on first use, because most of them need torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from storage.errors import did_you_mean

if TYPE_CHECKING:
    from tasks.domains.base import Domain
    from tasks.quantize.base import Method
    from tasks.runtimes.base import Runtime
    from tasks.workload.base import Kind
    from tasks.workload.recipe import Recipe
    from tasks.workload.workload import Workload

T = TypeVar("T")

Need = Literal["calibration", "fine-tuning"]  # features that a method may require of a domain


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Registry that maps names to stateless classes (``"module:class"``); the first entry is the default."""

    kind: str
    entries: Mapping[str, str]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> T:
        """Import and instantiate a registered class."""
        return cast(T, self.named(name)())

    def named(self, name: str) -> Any:  # any class can be registered
        """Import a registered class; raise ValueError if the name is unknown."""
        if name not in self.entries:
            suggestion = did_you_mean(name, self.entries)
            raise ValueError(f'unknown {self.kind} "{name}"{suggestion}: expected one of {", ".join(self.entries)}')
        return resolve_name(self.entries[name])

    @property
    def default(self) -> str:
        """Name of the first entry, which is the default."""
        return next(iter(self.entries))


class Domains(Registry["Domain[Workload, Kind]"]):
    """Domains, keyed by name; each entry specifies the class of the domain's workloads."""

    def workload(self, name: str) -> type[Workload]:
        """Import the class of a domain's workloads, without importing torch."""
        return cast("type[Workload]", self.named(name))

    def __getitem__(self, name: str) -> Domain[Workload, Kind]:
        """Import a domain, including torch, and return an instance."""
        return cast("Domain[Workload, Kind]", resolve_name(self.workload(name).implementation)())


METHODS: Registry[Method[Recipe]] = Registry(
    "quantization method",
    {
        "none": "tasks.quantize.methods:Float",
        "dynamic": "tasks.quantize.methods:Dynamic",
        "dynamic-per-row": "tasks.quantize.methods:DynamicPerRow",
        "static": "tasks.quantize.methods:Static",
        "qat": "tasks.quantize.methods:Qat",
        "cast": "tasks.quantize.methods:Cast",
    },
)

RUNTIMES: Registry[Runtime] = Registry(
    "runtime",
    {
        "eager": "tasks.runtimes.eager:Eager",
        "torchscript": "tasks.runtimes.torchscript:TorchScript",
        "onnxruntime": "tasks.runtimes.onnxruntime:OnnxRuntime",
        "openvino": "tasks.runtimes.openvino:OpenVino",
        "aot-inductor": "tasks.runtimes.aot_inductor:AotInductor",
    },
)

DOMAINS: Domains = Domains(
    "domain",
    {
        "language-model": "tasks.domains.language_model:LanguageModelWorkload",
        "sequence": "tasks.domains.sequence:SequenceWorkload",
        "image-classification": "tasks.domains.image_classification:ImageWorkload",
        "text-encoder": "tasks.domains.text_encoder:EncoderWorkload",
        "custom": "tasks.domains.custom:CustomWorkload",
    },
)

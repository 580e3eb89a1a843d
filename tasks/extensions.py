"""What can be added to nightquant, by name: quantization methods, runtimes and domains, one line each.

The lines are strings, imported at the first use. So validating a workload file imports neither torch nor a runtime that
the file does not name, and every floor of `tasks` can look an extension up without importing a higher floor. A domain's
line names the class of its workloads, which needs no torch and names the domain's own class.
"""

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

Need = Literal["calibration", "fine-tuning"]  # what a method may ask of a domain, besides a float model


@dataclass(frozen=True)
class Registry(Generic[T]):
    """``"module:class"`` by name, the default first; ``kind`` is what messages call an entry. Classes are stateless."""

    kind: str
    entries: Mapping[str, str]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> T:
        """Import and make the implementation of that name.

        Raises
        ------
        ValueError
            There is none; the message lists the names there are.
        """
        return cast(T, self.named(name)())

    def named(self, name: str) -> Any:  # a class of any kind
        """Import the class that the line of that name names.

        Raises
        ------
        ValueError
            There is no such line; the message lists the names there are.
        """
        if name not in self.entries:
            meant = did_you_mean(name, self.entries)
            raise ValueError(f'there is no {self.kind} "{name}"{meant}: expected one of {", ".join(self.entries)}')
        return resolve_name(self.entries[name])

    @property
    def default(self) -> str:
        """The first name."""
        return next(iter(self.entries))


class Domains(Registry["Domain[Workload, Kind]"]):
    """Domains by name; a line names the class of a domain's workloads."""

    def workload(self, name: str) -> type[Workload]:
        """Import the class of a domain's workloads, without torch."""
        return cast("type[Workload]", self.named(name))

    def __getitem__(self, name: str) -> Domain[Workload, Kind]:
        """Import and make a domain, with torch."""
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
        "eager": "tasks.runtimes.runtimes:Eager",
        "torchscript": "tasks.runtimes.runtimes:TorchScript",
        "onnxruntime": "tasks.runtimes.runtimes:OnnxRuntime",
        "openvino": "tasks.runtimes.runtimes:OpenVino",
        "aot-inductor": "tasks.runtimes.runtimes:AotInductor",
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

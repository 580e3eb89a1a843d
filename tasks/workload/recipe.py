"""The ``[[recipe]]`` section: a quantization method, and the runtimes that execute the quantized model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, WithJsonSchema, model_validator
from pydantic_core import CoreSchema, core_schema

from storage.results import Setting
from tasks.workload.base import Registry, Section, Slug

METHODS: Registry[Recipe] = Registry(
    "quantization method",
    {
        "none": "tasks.quantize.methods:FloatRecipe",
        "dynamic": "tasks.quantize.methods:DynamicRecipe",
        "dynamic-per-row": "tasks.quantize.methods:DynamicPerRowRecipe",
        "static": "tasks.quantize.methods:StaticRecipe",
        "qat": "tasks.quantize.methods:QatRecipe",
        "cast": "tasks.quantize.methods:CastRecipe",
    },
)

RUNTIMES: Registry[RuntimeTraits] = Registry(
    "runtime",
    {
        "eager": "tasks.runtimes.eager:Eager",
        "torchscript": "tasks.runtimes.torchscript:TorchScript",
        "onnxruntime": "tasks.runtimes.onnxruntime:OnnxRuntime",
        "openvino": "tasks.runtimes.openvino:OpenVino",
        "aot-inductor": "tasks.runtimes.aot_inductor:AotInductor",
        "executorch": "tasks.runtimes.executorch:ExecuTorch",
    },
)

RuntimeName = Annotated[str, AfterValidator(RUNTIMES.known), WithJsonSchema({"type": "string", "enum": list(RUNTIMES)})]
Need = Literal["calibration", "fine-tuning"]  # features that a method may require of a domain
Engine = Literal["x86", "fbgemm", "onednn", "qnnpack"]
MemoryFormat = Literal["contiguous", "channels-last"]
Observer = Literal["min-max", "moving-average", "histogram"]
WeightScales = Literal["per-channel", "per-tensor"]


class Axis(NamedTuple):
    """A recipe key that a search varies, and the values to try; the default value comes first."""

    key: str
    values: tuple[object, ...]
    types: frozenset[str] = frozenset()  # if not empty, the key affects only models with such modules
    same_speed: bool = False  # whether the key has little effect on a model's speed


class RuntimeTraits(ABC):
    """The part of a runtime (`tasks.runtimes.base.Runtime`) that workload files and the machine depend on."""

    hands_over: ClassVar[bool] = True  # whether the files can be deployed; if so, the package has a ``check`` module
    distributions: ClassVar[tuple[str, ...]] = ()  # required distributions, whose versions are part of the digest

    @classmethod
    @abstractmethod
    def obstacle(cls, recipe: Recipe) -> str:
        """Return the reason that the runtime does not support a recipe, or "" if the runtime supports the recipe."""


class Recipe(Section):
    """The keys that recipes of all methods share; each method adds more keys.

    Validating a mapping returns an instance of the class for the recipe's method (`tasks.quantize.spec.MethodRecipe`).
    """

    converts: ClassVar[str] = ""  # import path of the method's converter (`tasks.quantize.source.Converter`)
    quantizes: ClassVar[bool] = True  # whether quantized layers can be compared with the float layers
    needs: ClassVar[tuple[Need, ...]] = ()  # data that a domain must provide in addition to a float model
    axes: ClassVar[tuple[Axis, ...]] = ()  # recipe keys that a search varies

    name: Slug
    """Name for tables and reports; must be unique within the file."""
    method: str
    """Quantization method; each method has additional keys."""
    runtimes: tuple[RuntimeName, ...] = Field(default=(RUNTIMES.default,), min_length=1)
    """Runtimes that execute the quantized model; each runtime adds a candidate."""
    engine: Engine = "x86"
    """Quantized engine that torch uses; float recipes and runtimes that are not based on torch ignore this key."""
    exclude: tuple[str, ...] = ()
    """Paths of modules that stay in float, together with all their submodules."""

    @model_validator(mode="wrap")
    @classmethod
    def _parse_as_method(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Recipe:
        if cls is Recipe and isinstance(value, dict) and "method" in value:
            return METHODS[str(value["method"])].model_validate(value)
        return handler(value)

    @model_validator(mode="after")
    def _check_fit(self) -> Self:
        if len(set(self.runtimes)) < len(self.runtimes):
            raise ValueError(f"runtimes contains a name twice ({', '.join(self.runtimes)}); list each only once")
        for name in self.runtimes:
            if obstacle := RUNTIMES[name].obstacle(self):
                raise ValueError(
                    f'recipe "{self.name}" is not compatible with runtime "{name}" ({obstacle}); '
                    f'change the recipe, or remove "{name}" from `runtimes`'
                )
        return self

    def cheap_variant(self, samples: int = 1) -> Recipe:
        """Return a cheap variant of this recipe, which skips training and calibrates on `samples` samples."""
        return self

    def content(self) -> dict[str, object]:
        """Return the keys that affect the quantized model: all keys except `name` and `runtimes`."""
        return self.model_dump(mode="json", exclude={"name", "runtimes"})


@dataclass(frozen=True, slots=True)
class CandidateName:
    """A recipe's name and a runtime; as text and in JSON, ``recipe/runtime``. Names are in the order of their texts."""

    recipe: str
    runtime: str

    def __str__(self) -> str:
        return f"{self.recipe}/{self.runtime}"

    def __lt__(self, other: CandidateName) -> bool:
        return str(self) < str(other)

    def key(self, setting: Setting) -> str:
        """Return the key in a benchmark's reports; the baseline's copy and the current bundle may share a name."""
        return str(self) if setting == "primary" else f"{self}#{setting}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name that `text` spells; raise `ValueError` unless it has the form ``recipe/runtime``."""
        recipe, _, runtime = text.partition("/")
        if not recipe or not runtime:
            raise ValueError(f'"{text}" is not a candidate; write recipe/runtime')
        return cls(recipe, runtime)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        parsed = core_schema.no_info_after_validator_function(cls.parse, core_schema.str_schema())
        as_text = core_schema.to_string_ser_schema(when_used="json")
        return core_schema.union_schema([core_schema.is_instance_schema(cls), parsed], serialization=as_text)

"""The name of a candidate within its workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class CandidateName:
    """A recipe's name and a runtime; as text and in JSON, ``recipe/runtime``. Names are in the order of their texts."""

    recipe: str
    runtime: str

    def __str__(self) -> str:
        return f"{self.recipe}/{self.runtime}"

    def __lt__(self, other: CandidateName) -> bool:
        return str(self) < str(other)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name that `text` spells; raise `ValueError` unless it has the form ``recipe/runtime``."""
        recipe, _, runtime = text.partition("/")
        if not recipe or not runtime:
            raise ValueError(f'"{text}" is not a candidate; write recipe/runtime')
        return cls(recipe, runtime)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        spelled = core_schema.no_info_after_validator_function(cls.parse, core_schema.str_schema())
        return core_schema.union_schema(
            [core_schema.is_instance_schema(cls), spelled],
            serialization=core_schema.to_string_ser_schema(when_used="json"),
        )

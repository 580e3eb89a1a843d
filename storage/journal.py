"""The journal of a search, from which a resumed search takes its answers and the rest of its budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from storage.errors import StoreError
from storage.root import Entry, StoreRoot

FOLDER = "searches"


class _Line(BaseModel):
    # Either end of a speed-up's interval may be infinite.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Began(_Line):
    """The beginning of a search, with the budget in seconds and the fingerprint of the host that times candidates."""

    event: Literal["began"] = "began"
    at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))
    budget_s: float
    fingerprint: str


class Answer(_Line):
    """The answer to a question, or None as ``value`` if the budget ended before the answer was found.

    ``cost_s`` is the answer's share of the search's wall time, ``duration_s`` the duration of the measurement, during
    which the search may have measured other trials, and ``together`` the number of answers from the measurement.
    """

    event: Literal["answer"] = "answer"
    question: str
    value: dict[str, JsonValue] | None
    cost_s: float
    duration_s: float = 0.0
    together: int = 1


class Ended(_Line):
    """The end of a search, and the reason why the search ended."""

    event: Literal["ended"] = "ended"
    at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))
    reason: str


Event = Began | Answer | Ended
_LINE: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


@dataclass
class Journal:
    """The journal of all searches with the same inputs; ``name`` is the file's name in the store."""

    root: StoreRoot
    name: str
    lines: list[Event] = field(default_factory=list)
    _answers: dict[str, Answer] = field(default_factory=dict)
    _unwritten: Began | None = None

    @classmethod
    def read(cls, place: StoreRoot | Path | str, workload: str, digest: str) -> Journal:
        """Read the journal of a workload's searches; `digest` is the digest of the searches' inputs."""
        root, name = StoreRoot.of(place), f"{FOLDER}/{workload}/{digest}.jsonl"
        try:
            lines = list(_parsed(root, name))
        except FileNotFoundError:
            lines = []
        return cls(root, name, lines, _found(line for line in lines if isinstance(line, Answer)))

    @property
    def in_progress(self) -> bool:
        """Whether the last search is unfinished."""
        ends = (line for line in reversed(self.lines) if not isinstance(line, Answer))
        return self._unwritten is not None or isinstance(next(ends, None), Began)

    @property
    def spent_s(self) -> float:
        """Wall time in seconds that the search in progress spent on its answers; 0 if no search is in progress."""
        spent = 0.0
        for line in reversed(self.lines if self.in_progress and self._unwritten is None else []):
            if not isinstance(line, Answer):
                break
            spent += line.cost_s
        return spent

    def begin(self, budget_s: float, fingerprint: str) -> None:
        """Begin a search, or continue an unfinished search; nothing is written before the first question."""
        if not self.in_progress:
            self._unwritten = Began(budget_s=budget_s, fingerprint=fingerprint)

    def find(self, question: str) -> Answer | None:
        """Return the last answer to a question, or None if the question has not been answered."""
        return self._answers.get(question)

    def answers(self) -> list[Answer]:
        """Return all answers, including those without a value, oldest first."""
        return [line for line in self.lines if isinstance(line, Answer)]

    def add(self, *answers: Answer) -> None:
        """Write answers."""
        self._append(*answers)
        self._answers |= _found(answers)

    def end(self, reason: str) -> None:
        """End the search in progress; a search without new answers is not recorded."""
        if self._unwritten is None and self.in_progress:
            self._append(Ended(reason=reason))
        self._unwritten = None

    def _append(self, *lines: Event) -> None:
        begun = [self._unwritten] if self._unwritten else []
        written = [*self.lines, *begun, *lines]
        self.root.put(self.name, "".join(f"{line.model_dump_json()}\n" for line in written).encode())
        self.lines, self._unwritten = written, None


def _found(answers: Iterable[Answer]) -> dict[str, Answer]:
    return {answer.question: answer for answer in answers if answer.value is not None}


def old_journals(root: StoreRoot, before: float) -> list[Entry]:
    """List journals older than `before` (Unix time)."""
    return [entry for entry in root.list(FOLDER) if entry.name.endswith(".jsonl") and entry.modified < before]


def _parsed(root: StoreRoot, name: str) -> Iterator[Event]:
    for text in root.read(name).splitlines():
        try:
            yield _LINE.validate_json(text)
        except ValidationError as error:
            raise StoreError(
                f"The search journal {root.uri(name)} is damaged.",
                hint="Remove the journal, then start the search again.",
            ) from error

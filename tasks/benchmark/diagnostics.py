"""Memory and what is executed, looked at after the candidates were timed.

What is found here costs no timing: a number that cannot be had is unknown, with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from storage.errors import MeasurementError
from tasks.benchmark.child import Limit
from tasks.benchmark.messages import Memory, MemoryReport, Subject
from tasks.benchmark.protocol import Session
from tasks.proofs import Proof, ProofReport

R = TypeVar("R", MemoryReport, ProofReport)
_SAMPLED = ("instructions", "saturation")


@dataclass
class Diagnosis:
    """What was found of each subject; ``unknown`` maps subjects to columns of ``measurements`` without a value.

    ``proof_wall_s`` is how long it took to look at what they execute.
    """

    memory: dict[str, Memory] = field(default_factory=dict)
    proofs: dict[str, Proof] = field(default_factory=dict)
    unknown: dict[str, dict[str, str]] = field(default_factory=dict)
    proof_wall_s: float = 0.0

    def lack(self, columns: Iterable[str], reasons: dict[str, str]) -> None:
        """Note that subjects have no value in `columns`, by their reasons."""
        for name, why in reasons.items():
            self.unknown.setdefault(name, {}).update(dict.fromkeys(columns, why))


def diagnose(session: Session, subjects: Sequence[Subject], modules: tuple[str, ...]) -> Diagnosis:
    """Look at memory and at what is executed, side by side, because neither is a matter of wall time."""
    found = Diagnosis()

    def prove() -> tuple[list[ProofReport], dict[str, str]]:
        began = time.perf_counter()
        looked = look(lambda some: session.prove(some, modules), subjects, session.limit)
        found.proof_wall_s = time.perf_counter() - began
        return looked

    with ThreadPoolExecutor(2) as pool:
        measuring = pool.submit(look, lambda some: session.measure_memory(some, modules), subjects, session.limit)
        proving = pool.submit(prove)
    (memories, unmeasured), (proofs, unproven) = measuring.result(), proving.result()
    for memory in memories:
        found.memory |= memory.memory
        unmeasured |= memory.refused
    for proof in proofs:
        found.proofs |= proof.proofs
        unproven |= proof.refused
        if proof.unsampled:
            found.lack(_SAMPLED, dict.fromkeys(proof.proofs, proof.unsampled))
    found.lack(Memory.model_fields, unmeasured)
    found.lack(Proof.model_fields, unproven)
    return found


def look(
    measure: Callable[[Sequence[Subject]], R], subjects: Sequence[Subject], limit: Limit
) -> tuple[list[R], dict[str, str]]:
    """Measure all subjects in one process; if that dies, measure each in a process of its own.

    Returns
    -------
    reports, refused
        What the processes reported, and by subject why none did.
    """
    try:
        return [measure(subjects)], {}
    except MeasurementError as error:
        if len(subjects) == 1 or limit.left_s() == 0:
            return [], {subject.name: str(error) for subject in subjects}
    # Alone, the subject that ended the process costs only itself.
    reports: list[R] = []
    refused: dict[str, str] = {}
    for subject in subjects:
        more, failed = look(measure, [subject], limit)
        reports += more
        refused |= failed
    return reports, refused

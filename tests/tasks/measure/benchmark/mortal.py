"""A stand-in for `tasks.measure.proof.child` that dies as planted subjects ask.

A subject whose plan has ``dies`` ends the process with that signal; the others are proven to run in int8 by half.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tasks.measure.benchmark.messages import ChildSpec
from tasks.values.proofs import Proof, ProofReport


def run(spec_json: str, _wait: object) -> ProofReport:
    """Look at each subject of a `ChildSpec`."""
    spec = ChildSpec.model_validate_json(spec_json)
    for subject in spec.subjects:
        plan = json.loads((Path(subject.folder) / "plan.json").read_text(encoding="utf-8"))
        if "dies" in plan:
            os.kill(os.getpid(), plan["dies"])
    return ProofReport(
        proofs={subject.key: Proof(int8_time_share=0.5) for subject in spec.subjects}, unsampled="not allowed"
    )

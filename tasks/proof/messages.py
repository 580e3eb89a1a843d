"""What was found of the candidates that ran: small JSON, from the process that looked to the rows."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from tasks.refs import Frozen
from tasks.runtimes.operators import FloatOperator


class Proof(Frozen):
    """What one candidate executed.

    ``int8_time_share`` is the share of its operators' time in those that compute in int8, ``float_operators`` the most
    expensive of the others, both by its runtime's profiler (None and () where it has none). ``instructions`` are the
    shares of its time in each family of instructions, where the system lets programs be sampled. ``saturation`` is how
    far its outputs are from the same arithmetic without saturation, as a share of their range: 0 where its products
    cannot saturate, None where that is not known. ``doubts`` say what speaks against int8 having run as promised.
    """

    # NaN stays NaN on its way through JSON: as null it would look like a number that nobody asked for.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    int8_time_share: float | None = None
    float_operators: tuple[FloatOperator, ...] = ()
    instructions: dict[str, float] | None = None
    saturation: float | None = None
    doubts: tuple[str, ...] = ()


class ProofReport(Frozen):
    """Proofs by subject, why there is none of the others, and why nothing was sampled, "" where it was."""

    proofs: dict[str, Proof]
    refused: dict[str, str] = Field(default={})
    unsampled: str = ""

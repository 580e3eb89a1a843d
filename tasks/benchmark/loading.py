"""From a subject to something that can be called: the candidate from its folder, bound to its golden inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tasks.benchmark.messages import Subject
from tasks.golden import Golden
from tasks.runtimes import RUNTIMES
from tasks.runtimes.base import CandidateFiles


@dataclass(frozen=True)
class Loaded:
    """A subject ready to be called; ``scope`` is entered around its calls, outside of what is timed."""

    call: Callable[[], object]
    golden: tuple[Tensor, ...] = ()
    scope: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)


def load_candidate(subject: Subject) -> Loaded:
    """Open a candidate and bind it to its golden inputs."""
    shared = {kind: Path(folder) for kind, folder in subject.shared.items()}
    files = CandidateFiles(Path(subject.folder), shared)
    opened = RUNTIMES[subject.runtime].open(files, torch.get_num_threads())
    golden = Golden.read(Path(subject.golden))
    return Loaded(partial(opened.call, *golden.inputs.values()), golden.outputs, opened.scope)

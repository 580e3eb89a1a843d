"""Attacks on what is handed over: bundles, and the signed pointer that says which one is current."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.attacks.outcome import Outcome, mutated, outcome_of
from storage.pointer import Pointer, Switch, read_current
from storage.seal import MANIFEST, SUMS, check_sums, read_manifest, signed_sums, write_sums
from tests.storage.bundle_files import signer_of
from tests.tasks.publish.test_mutations import MUTATIONS


def bundles(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Changed bundles: as they are, with a list of sums made anew, and signed before that."""
    signer = signer_of()
    key = signer.key.public_key()
    for number in range(tries):
        bundle = folder / f"bundle-{number}"
        bundle.mkdir()
        (bundle / "model.ts").write_bytes(b"weights")
        (bundle / MANIFEST).write_text(json.dumps({"model": {"outputs": [{"name": "y", "tolerance": 1e-6}]}}))
        write_sums(bundle)
        before, kind = check_sums(bundle), chance.randrange(3)
        if kind == 0:
            chance.choice(MUTATIONS)(bundle, chance)
            found = outcome_of(lambda: check_sums(bundle))  # noqa: B023 - called at once
            yield "through" if found == "harmless" else found
            continue
        signature = signer.sign_bundle(bundle) if kind == 2 else b""
        (bundle / MANIFEST).write_bytes(mutated((bundle / MANIFEST).read_bytes(), chance, changes=3))
        after = write_sums(bundle)
        if kind == 1:
            yield outcome_of(lambda: read_manifest(bundle))  # noqa: B023 - called at once
        else:
            sums = (bundle / SUMS).read_bytes()
            found = outcome_of(lambda: signed_sums(bundle, sums, signature, key))  # noqa: B023 - called at once
            yield "through" if found == "harmless" and after != before else found


def pointers(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """What a mirror may serve for the newest signed current.json: an older, changed or stranger's one, another's."""
    path, state, key = folder / "current.json", folder / "seen.json", signer_of().key.public_key()

    def made(number: int, workload: str = "word-lm", by: str = "ours") -> Pointer:
        version, sums, at = f"2026-11-21-{number:012x}", f"{number:064x}", dt.datetime.now(dt.UTC)
        switch = Switch(action="promote", version=version, sha256sums=sums, at=at, by="a night", reason="fastest")
        pointer = Pointer(workload=workload, version=version, sha256sums=sums, history=(switch,), serial=2**40 + number)
        return pointer.signed(signer_of(by))

    def taken() -> None:
        if read_current(path, "word-lm", key, state).sha256sums != newest.sha256sums:
            raise AssertionError("another bundle than the current one was believed")

    newest = made(999)
    path.write_text(newest.text(), encoding="utf-8")
    taken()
    for _ in range(tries):
        kind = chance.randrange(4)
        served = made(chance.randrange(999)) if kind == 0 else newest
        if kind == 1:
            served = made(chance.randrange(2000), chance.choice(("resnet18", "word-lm-2")))
        if kind == 2:
            served = made(chance.randrange(1000, 2000), by="others")
        content = served.text().encode()
        path.write_bytes(mutated(content, chance, chance.randint(1, 5)) if kind == 3 else content)
        yield outcome_of(taken)

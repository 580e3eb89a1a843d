"""Attacks on what is handed over: bundles, and the signed pointer that says which one is current."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.attacks.outcome import Outcome, mutated, outcome_of
from storage.pointer import Pointer, Switch, signed, stated
from storage.seal import MANIFEST, check_signature, check_sums, read_manifest, sign, write_sums
from storage.trust import Signer
from tests.tasks.bundle.mutations import mutate


def bundles(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """Changed bundles: as they are, with a list of sums made anew, and signed before that."""
    key = Ed25519PrivateKey.generate()
    for number in range(tries):
        bundle = folder / f"bundle-{number}"
        bundle.mkdir()
        (bundle / "model.ts").write_bytes(b"weights")
        (bundle / MANIFEST).write_text(json.dumps({"model": {"outputs": [{"name": "y", "tolerance": 1e-6}]}}))
        write_sums(bundle)
        before, kind = check_sums(bundle), chance.randrange(3)
        if kind == 0:
            mutate(bundle, chance)
            found = outcome_of(lambda: check_sums(bundle))  # noqa: B023 - called at once
            yield "through" if found == "harmless" else found
            continue
        sign(bundle, key)
        (bundle / MANIFEST).write_bytes(mutated((bundle / MANIFEST).read_bytes(), chance, changes=3))
        after = write_sums(bundle)
        if kind == 1:
            yield outcome_of(lambda: read_manifest(bundle, after))  # noqa: B023 - called at once
        else:
            found = outcome_of(lambda: check_signature(bundle, [key.public_key()], after))  # noqa: B023 - called at once
            yield "through" if found == "harmless" and after != before else found


def pointers(chance: random.Random, tries: int, folder: Path) -> Iterator[Outcome]:
    """What a mirror may serve for the newest signed current.json: an older, changed or stranger's one, another's."""
    keys = [Ed25519PrivateKey.from_private_bytes(chance.randbytes(32)) for _ in range(2)]
    signer, stranger = (Signer((key,), dt.timedelta(days=30)) for key in keys)
    now, path, state = dt.datetime.now(dt.UTC), folder / "current.json", folder / "seen.json"

    def made(number: int, workload: str = "word-lm", by: Signer = signer) -> Pointer:
        version, sums = f"2026-11-21-{number:012x}", f"{number:064x}"
        at = now - dt.timedelta(hours=1) + dt.timedelta(seconds=number)
        switch = Switch(action="promote", version=version, sha256sums=sums, at=at, by="a night", reason="fastest")
        return signed(Pointer(workload=workload, version=version, sha256sums=sums, history=(switch,)), by, None, at)

    def taken() -> None:
        if stated(path, "word-lm", signer.public, state=state).sha256sums != newest.sha256sums:
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
            served = made(chance.randrange(1000, 2000), by=stranger)
        content = served.text().encode()
        path.write_bytes(mutated(content, chance, chance.randint(1, 5)) if kind == 3 else content)
        yield outcome_of(taken)

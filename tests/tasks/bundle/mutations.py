"""Ways to change a bundle that must all be noticed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

SUMS = "SHA256SUMS"


def mutate(folder: Path, random: Random) -> str:
    """Change something in a bundle; give what."""
    name, change = random.choice(MUTATIONS)
    change(folder, random)
    return name


def _any(folder: Path, random: Random) -> Path:
    return random.choice(sorted(folder.iterdir()))


def _flip(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def _remove(folder: Path, random: Random) -> None:
    _any(folder, random).unlink()


def _rename(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    path.rename(path.with_name(random.choice(["x-", "."]) + path.name))


def _add(folder: Path, random: Random) -> None:
    name = random.choice(["extra.bin", ".hidden", "torch.py", "sitecustomize.py", "model.ts~", "ä", "a b"])
    (folder / name).write_bytes(random.randbytes(random.randrange(9)))


def _add_special(folder: Path, random: Random) -> None:
    make: list[Callable[[Path], object]] = [
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("model.ts"),
        lambda path: path.symlink_to("/etc/hostname"),
        lambda path: path.symlink_to("nowhere"),
    ]
    random.choice(make)(folder / "extra")


def _link(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    outside = folder.parent / f"outside-{folder.name}-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


def _edit_manifest(folder: Path, random: Random) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for output in manifest["model"]["outputs"]:
        output["tolerance"] = 10.0 ** random.randint(1, 9)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def _edit_sums(folder: Path, random: Random) -> None:
    lines = (folder / SUMS).read_text(encoding="ascii").splitlines(keepends=True)
    which = random.randrange(len(lines))
    changed = [
        lines[:which] + lines[which + 1 :],
        [*lines, lines[which]],
        lines[::-1],
        [*lines[:which], lines[which].upper(), *lines[which + 1 :]],
        [*lines, "0" * 64 + "  ../outside\n"],
        [line.replace("  ", " *") for line in lines],
        ["\n", *lines],
    ]
    (folder / SUMS).write_text("".join(random.choice(changed)), encoding="ascii")


MUTATIONS: list[tuple[str, Callable[[Path, Random], None]]] = [
    ("flip a bit", _flip),
    ("remove", _remove),
    ("rename", _rename),
    ("add a file", _add),
    ("add what is no file", _add_special),
    ("put a link in a file's place", _link),
    ("edit the manifest", _edit_manifest),
    ("edit the list", _edit_sums),
]

"""What a disk holds after a power cut: a model of files and folders that were written but not flushed.

A file's content is safe once the file was flushed, an entry of a folder once the folder was; until then each may be
there or not, whatever came before or after it. A rename is one step: both of its entries, or neither.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(eq=False)
class Node:
    """A file or a folder: as programs see it, and as it is on the disk. ``entries`` is None for a file."""

    entries: dict[str, Node] | None = None
    safe_entries: dict[str, Node] = field(default_factory=dict)
    content: bytes = b""
    safe_content: bytes = b""


# Entries (folder, name, what is there afterwards) that change in one step.
_Step = tuple[tuple[Node, str, Node | None], ...]


class Disk:
    """The disk below `folder`, all of which is safe at the beginning."""

    def __init__(self, folder: Path) -> None:
        self._base = folder
        self._root = _scanned(folder)
        self._pending: list[_Step] = []

    def note(self, operation: str, path: Path, other: Path | None = None) -> None:
        """Follow one operation that was done."""
        if operation == "fsync":
            self._flush(self._node(path))
            return
        parent = self._node(path.parent)
        folder, name = _entries(parent), path.name
        if operation == "create":
            if name not in folder:
                self._change((parent, name, Node()))
            folder[name].content = path.read_bytes()
        elif operation == "write":
            folder[name].content = path.read_bytes()
        elif operation == "mkdir":
            self._change((parent, name, Node({})))
        elif operation in ("unlink", "rmdir"):
            self._change((parent, name, None))
        elif other is not None:
            moved = folder[name] if operation == "link" else None
            self._change((parent, name, moved), (self._node(other.parent), other.name, folder[name]))

    def after_power_cuts(self, chance: random.Random) -> Iterator[tuple[str, Callable[[Path], None]]]:
        """Ways in which the power may go now: what is left, and how to write that to an empty folder."""
        yield (
            "only what was flushed",
            lambda folder: self._write(folder, lambda _: False, lambda node: node.safe_content),
        )
        yield (
            "names without contents",
            lambda folder: self._write(folder, lambda _: True, lambda node: node.safe_content),
        )

        def some_of(node: Node) -> bytes:
            return chance.choice((node.safe_content, node.content[: len(node.content) // 2], node.content))

        yield "some of the rest", lambda folder: self._write(folder, lambda _: chance.random() < 0.5, some_of)

    def _write(self, folder: Path, happened: Callable[[_Step], bool], content: Callable[[Node], bytes]) -> None:
        entries: dict[Node, dict[str, Node]] = {}

        def on_disk(node: Node) -> dict[str, Node]:
            return entries.setdefault(node, dict(node.safe_entries))

        for step in self._pending:
            if happened(step):
                for parent, name, child in step:
                    _set(on_disk(parent), name, child)

        def write(node: Node, path: Path) -> None:
            if node.entries is None:
                path.write_bytes(node.content if node.content == node.safe_content else content(node))
                return
            path.mkdir(exist_ok=True)
            for name, child in on_disk(node).items():
                write(child, path / name)

        write(self._root, folder)

    def _change(self, *step: tuple[Node, str, Node | None]) -> None:
        for parent, name, child in step:
            _set(_entries(parent), name, child)
        self._pending.append(step)

    def _flush(self, node: Node) -> None:
        node.safe_content = node.content
        rest = []
        for step in self._pending:
            if any(parent is node for parent, _, _ in step):
                for parent, name, child in step:
                    _set(parent.safe_entries, name, child)
            else:
                rest.append(step)
        self._pending = rest

    def _node(self, path: Path) -> Node:
        node = self._root
        for part in path.relative_to(self._base).parts:
            node = _entries(node)[part]
        return node


def _scanned(path: Path) -> Node:
    if not path.is_dir():
        content = path.read_bytes()
        return Node(content=content, safe_content=content)
    entries = {child.name: _scanned(child) for child in path.iterdir()}
    return Node(entries, dict(entries))


def _entries(node: Node) -> dict[str, Node]:
    if node.entries is None:
        raise NotADirectoryError
    return node.entries


def _set(entries: dict[str, Node], name: str, child: Node | None) -> None:
    if child is None:
        entries.pop(name, None)
    else:
        entries[name] = child

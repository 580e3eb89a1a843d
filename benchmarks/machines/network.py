"""Machines in network namespaces of this host: each has an address, a host name and folders of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.documentation.pages import ROOT
from tests.flows.processes import Command

ADDRESS = "10.77.0.1"
_BRIDGE = f"nq{os.getpid()}"
_BEGIN = 'hostname "$0"; exec "$@"'


class Network:
    """A bridge of this host, at `ADDRESS`, with machines on it; needs root and iproute2.

    Raises
    ------
    PermissionError
        The system does not allow it.
    """

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.machines = [
            Machine(name, f"10.77.0.{number}", folder / name, _BRIDGE) for number, name in enumerate(names, 2)
        ]

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", _BRIDGE, "type", "bridge")
        except subprocess.CalledProcessError as error:
            raise PermissionError(f"No network of one's own: {error.stderr}") from error
        _ip("address", "add", f"{ADDRESS}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for machine in self.machines:
            machine.connect()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for machine in self.machines:
            machine.die()
            _ip("netns", "delete", machine.name)
        _ip("link", "delete", _BRIDGE)


class Machine:
    """One of them; ``variables`` is what every command there has in its environment."""

    def __init__(self, name: str, address: str, folder: Path, bridge: str) -> None:
        self.name, self.address, self._bridge = name, address, bridge
        self.folder = folder
        self.variables = {"NIGHTQUANT_CACHE": str(folder / "cache")}
        self._begun: list[Command] = []

    def connect(self) -> None:
        """Make its name space and plug it in."""
        self.folder.mkdir(parents=True)
        _ip("netns", "add", self.name)
        cable = f"{self._bridge}-{self.address.rpartition('.')[2]}"
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", cable, "master", self._bridge, "up")
        _ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            _ip("-n", self.name, "link", "set", link, "up")

    def start(self, *arguments: str, **variables: str) -> Command:
        """Run Python with these arguments on it; the output goes into a log in its folder."""
        inside = ("unshare", "--uts", "sh", "-c", _BEGIN, self.name, sys.executable)
        command = Command(
            *arguments,
            home=self.folder / "prefect",
            cwd=ROOT,
            program=("ip", "netns", "exec", self.name, *inside),
            log=self.folder / "log",
            **self.variables | variables,
        )
        self._begun.append(command)
        return command

    def log(self) -> str:
        """What its commands said."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def die(self) -> None:
        """SIGKILL to every process of it."""
        for command in self._begun:
            command.kill()
        self._begun = []


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)

"""Find every process that a command left behind, by a variable in its environment."""

import contextlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from typing import ClassVar

import psutil

NIGHTQUANT = (sys.executable, "-m", "flows")
# Packaging runs in the flow's own process.
STAGES = {
    "prepare data set",
    "obtain checkpoint",
    "build",
    "evaluate",
    "compare with the baseline",
    "find current bundle",
    "benchmark",
}


class Command:
    """``nightquant`` (or another program) in its own process; its descendants can be found even when it is gone."""

    begun: ClassVar[list["Command"]] = []

    def __init__(self, *arguments, home, cwd, program=NIGHTQUANT, log=None, **variables):
        # Not NIGHTQUANT_…: settings refuse what they do not know.
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*program, *arguments],
            cwd=cwd,
            env=os.environ | {"PREFECT_HOME": str(home), "MARK_OF_THIS_TEST": self.mark} | variables,
            # A file for what runs for long: nobody reads its pipe, and a full one stops it.
            stdout=subprocess.PIPE if log is None else log.open("a"),
            stderr=subprocess.STDOUT,
            text=True,
            # A background shell's children inherit SIGINT ignored, and Python then does not handle it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.begun.append(self)

    def wait_for(self, text, timeout_s=240.0):
        """Read the output up to a line that holds `text`; give all lines so far."""
        lines = []
        deadline = time.monotonic() + timeout_s
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return lines
            assert time.monotonic() < deadline, lines
        raise AssertionError("".join(lines))

    def survivors(self):
        """Living processes that carry this command's mark, itself included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("MARK_OF_THIS_TEST") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process.pid, " ".join(process.cmdline())))
        return found

    def wait_until_gone(self, timeout_s=60.0):
        """Give what is still alive after `timeout_s`; [] where all is gone."""
        deadline = time.monotonic() + timeout_s
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def kill(self):
        """Send SIGKILL to every process of the command."""
        for pid, _ in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @classmethod
    def end_all(cls):
        """Kill whatever commands have left running: what a failed test leaves would disturb those after it."""
        while cls.begun:
            command = cls.begun.pop()
            while command.survivors():
                command.kill()
                time.sleep(0.05)
            command.process.wait()


def quick_night(store, *workloads, home, cwd):
    """Begin a quick night over `workloads`, names or TOML files, in a process of its own."""
    asked = [part for one in workloads for part in ("--workload", one)]
    return Command("nightly", *asked, "--profile", "quick", "--store", str(store), home=home, cwd=cwd)


def free_port():
    """A port that nothing takes by itself: the system gives out others to those that ask for any."""
    for port in range(20000 + os.getpid() % 10000, 32000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no free port")


def processes_of_stages(home):
    """Which process each stage's task ran in, from Prefect's log: stage to process ids; packaging is the flow's own."""
    with sqlite3.connect(home / "prefect.db") as database:
        messages = [row[0] for row in database.execute("SELECT message FROM log")]
    found = {}
    for message in messages:
        if match := re.fullmatch(r".*: ([a-z ]+): started on \S+, process (\d+)", message):
            found.setdefault(match[1], set()).add(int(match[2]))
    found.pop("package", None)  # only where the machine was quiet enough for a candidate to pass the gate
    return found

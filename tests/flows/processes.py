"""Find every process that a command left behind, by a variable in its environment."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path


class Command:
    """``nightquant`` (or another module) in its own process; its descendants can be found even when it is gone."""

    def __init__(self, *arguments, home, cwd, module="flows"):
        # Not NIGHTQUANT_…: settings refuse what they do not know.
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=cwd,
            env=os.environ | {"PREFECT_HOME": str(home), "MARK_OF_THIS_TEST": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

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
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                marked = f"MARK_OF_THIS_TEST={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if marked and state != "Z":
                found.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        return found

    def wait_until_gone(self, timeout_s=20.0):
        """Give what is still alive after `timeout_s`; [] where all is gone."""
        deadline = time.monotonic() + timeout_s
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

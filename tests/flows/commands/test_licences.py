from __future__ import annotations

import json
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from flows.commands.licences import command


@pytest.mark.slow
def test_every_package_has_a_line_and_what_needs_a_look_is_marked():
    lines = CliRunner().invoke(command).output.splitlines()
    (pebble,) = (line for line in lines if line[2:].startswith("pebble "))
    assert pebble.startswith("* ")
    assert version("pebble") in pebble
    assert "LGPL" in pebble
    (numpy,) = (line for line in lines if line[2:].startswith("numpy "))
    assert numpy.startswith("  ")
    rows = json.loads(CliRunner().invoke(command, ["--format", "json"]).output)
    marked = [row["name"] for row in rows if row["look"]]
    assert lines[-1] == f"{len(rows)} packages, {len(marked)} of them to look at (*)."
    assert [line[2:].split()[0] for line in lines[:-1] if line[0] == "*"] == marked

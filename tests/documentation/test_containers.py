"""The container image and the work pools that docs/hosts.md names, as far as they can be read without a daemon."""

from __future__ import annotations

import re

import pytest
import yaml

from flows.request import NightlyRequest
from tests.documentation.pages import ROOT

FILES = ROOT / "docs" / "examples" / "containers"
STEPS = re.findall(r"(?m)^([A-Z]+) (.*(?:\\\n.*)*)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))


def test_every_path_that_the_image_copies_exists_and_reaches_the_build() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*"
    copied = [source for step, words in STEPS if step == "COPY" for source in words.split()[:-1]]
    assert {"pyproject.toml", "constraints.txt", "flows", "tasks", "storage", "prefect.yaml"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source
    packages = re.findall(r'"(\w+)\*"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(packages) <= set(copied)


def test_the_image_runs_as_an_unprivileged_user_and_installs_nothing_at_run_time() -> None:
    (user,) = (words for step, words in STEPS if step == "USER")
    assert int(user) > 0
    assert f"useradd --uid {user} " in " ".join(words for step, words in STEPS if step == "RUN")
    names = [step for step, _ in STEPS]
    assert names.index("USER") > max(index for index, name in enumerate(names) if name in ("RUN", "COPY"))
    assert "ENTRYPOINT" not in names  # a work pool puts its own command in the place of CMD


@pytest.mark.parametrize("name", ["prefect-docker.yaml", "prefect-kubernetes.yaml"])
def test_the_image_and_the_checkout_have_the_same_deployments(name: str) -> None:
    declared = yaml.safe_load((FILES / name).read_text(encoding="utf-8"))
    (pull,) = declared["pull"]
    (work_folder,) = (words for step, words in STEPS if step == "WORKDIR")
    assert pull["prefect.deployments.steps.set_working_directory"]["directory"] == work_folder
    base = {each["name"]: each for each in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]}
    for each in declared["deployments"]:
        same = ("entrypoint", "enforce_parameter_schema", "tags", "schedules")
        assert {key: each[key] for key in same} == {key: base["nightly"][key] for key in same}
        NightlyRequest.model_validate(each["parameters"]["request"])

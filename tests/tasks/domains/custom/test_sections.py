from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.workload import read_workload
from tests.tasks.domains.custom.own import own

FLOAT = {"name": "float", "method": "none"}
DATA = {"kind": "factory", "factory": "own_code:splits"}
TRAINED = {"kind": "train", "train": "own_code:train"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate": {"metric": "acuracy"}}, "expected module:callable or one of accuracy"),
        ({"evaluate": {"metric": "own_code:score"}}, "set higher_is_better"),
        (
            {"evaluate": {"metric": "mse", "higher_is_better": True}},
            'metric "mse" already defines higher_is_better and unit; remove these keys',
        ),
        ({"data": {"kind": "csv", "uri": "t.csv", "features": [], "target": "y"}}, "features"),
        ({"benchmark": {"sequence_length": 8}}, "exactly one named axis besides batch"),
        (
            {"benchmark": {"sequence_length": 8}, "data": DATA | {"axes": {"a": ["batch", "x"], "b": ["", "y"]}}},
            "exactly one named axis besides batch",
        ),
        ({"recipe": [FLOAT, {"name": "q", "method": "qat"}]}, 'method "qat" of recipe "q" needs a training callable'),
        (
            {"recipe": [FLOAT, {"name": "q", "method": "qat", "learning_rate": 0.1}], "checkpoint": TRAINED},
            'recipe "q" sets learning_rate, which cannot be combined with a training callable',
        ),
    ],
)
def test_an_impossible_workload_is_refused_as_a_file(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        own(tmp_path, **changes)


@pytest.mark.slow
def test_sections_have_their_files_folder_but_not_in_their_content(tmp_path: Path) -> None:
    examples = Path(__file__).parents[4] / "docs" / "examples"
    (tmp_path / "power.toml").write_text((examples / "power.toml").read_text(encoding="utf-8"), encoding="utf-8")
    workload = read_workload(tmp_path / "power.toml")
    assert {workload.model.folder, workload.checkpoint.folder} == {str(tmp_path.resolve())}
    assert str(tmp_path) not in workload.model.model_dump_json()

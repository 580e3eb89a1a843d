from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage.artifacts import ArtifactStore
from storage.errors import UnavailableError
from tasks.domains.text_encoder import EncoderWorkload
from tasks.workload.workload import DOMAINS
from tests.tasks.domains.text_encoder.encoders import encoder, of_config, write_directory
from tests.tasks.pipeline import prepare

TABLE = {"kind": "csv", "uri": "texts.csv", "text": "text"}
VECTORS = {"kind": "config", "task": "embedding", "config": {"model_type": "bert"}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data": TABLE}, "set data.label to the column"),
        ({"evaluate": {"metric": "cosine"}}, '"cosine" is not compatible with model.task "classification"'),
        ({"data": TABLE, "model": VECTORS, "evaluate": {"metric": "accuracy"}}, "is not compatible with model.task"),
        ({"data": TABLE, "model": VECTORS, "evaluate": {"metric": "retrieval"}}, '"retrieval" needs data.pair'),
        ({"model": of_config()}, 'checkpoint.kind "directory" needs model.kind "directory"'),
        (
            {"data": TABLE, "model": VECTORS, "checkpoint": {"kind": "train"}},
            '"train" does not support model.task "embedding"',
        ),
        ({"recipe": [{"name": "tuned", "method": "qat"}]}, "which does not fine-tune models"),
    ],
)
@pytest.mark.slow
def test_sections_that_do_not_fit_together_are_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    model = changes.get("model", of_config())
    given = {"checkpoint": {"kind": "seeded"}} if changes != {"model": of_config()} else {}
    with pytest.raises(ValidationError, match=expected):
        encoder(tmp_path, **(given | {"model": model} | changes))


@pytest.mark.parametrize(("keys", "metric"), [({}, "cosine"), ({"pair": "other"}, "retrieval")])
@pytest.mark.slow
def test_the_metric_suits_the_task_unless_it_is_named(tmp_path: Path, keys: dict[str, str], metric: str) -> None:
    checkpoint = {"kind": "seeded"}
    assert encoder(tmp_path, data=TABLE | keys, model=VECTORS, checkpoint=checkpoint).metric == metric
    assert encoder(tmp_path, model=of_config(), checkpoint=checkpoint).metric == "accuracy"


@pytest.mark.slow
def test_a_section_from_the_store_needs_no_directory(tmp_path: Path) -> None:
    write_directory(tmp_path / "encoder")
    section = encoder(tmp_path).model
    again = DOMAINS["text-encoder"].parse_model(section.model_dump(mode="json"), "/nowhere")
    assert again.model_dump(mode="json") == section.model_dump(mode="json")


def test_reading_workloads_imports_neither_torch_nor_the_extra() -> None:
    program = (
        "import sys; from flows.request import NightlyRequest; NightlyRequest().load_workloads();"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_without_the_extra_a_workload_is_skipped_with_an_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncoderWorkload, "distributions", ("transformers", "some-library"))
    workload = encoder(tmp_path, model=of_config(), checkpoint={"kind": "seeded"})
    with pytest.raises(UnavailableError) as refused:
        prepare(workload, ArtifactStore(tmp_path))
    assert str(refused.value) == (
        "The \"text-encoder\" domain needs some-library, which is not installed. Run: pip install 'nightquant[text]'"
    )

from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts import ArtifactStore
from storage.errors import ConfigurationError, InputError
from tasks.data.samples import load_samples, load_test, read_description
from tasks.search.trial import Selection
from tests.tasks.domains.custom.own import CODE, own, write
from tests.tasks.pipeline import example_inputs, prepare

TWO_INPUTS = """
class Scaled(Linear):
    def forward(self, rows, scale=None):
        found = self.layer(rows)
        return found if scale is None else found * scale[:, None]

def named(rows=8):
    return dict.fromkeys(("calibration", "test"), [({"scale": torch.tensor(2.0), "rows": torch.ones(3)}, 1)] * rows)

def tupled(rows=8):
    return dict.fromkeys(("calibration", "test"), [((torch.ones(3), torch.tensor(2.0)), 1)] * rows)
"""
SEQUENCES = """
class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, steps, lengths):
        inside = torch.arange(steps.shape[1]) < lengths[:, None]
        return self.layer((steps * inside[..., None]).sum(1) / lengths[:, None])

def sequences():
    generator = torch.Generator().manual_seed(0)
    items = [(torch.randn(2 + index % 5, 2, generator=generator), index % 2) for index in range(10)]
    return {"calibration": items, "test": items}

def pad(items):
    steps = nn.utils.rnn.pad_sequence([inputs for inputs, _ in items], batch_first=True)
    return (steps, torch.tensor([len(inputs) for inputs, _ in items])), torch.tensor([target for _, target in items])
"""
PADDED = {
    "kind": "factory",
    "factory": "own_code:sequences",
    "collate": "own_code:pad",
    "batch_size": 4,
    "axes": {"steps": ["batch", "time"], "lengths": ["batch"]},
}
MEAN = {"kind": "factory", "factory": "own_code:Mean"}


@pytest.mark.parametrize("factory", ["named", "tupled"])
@pytest.mark.slow
def test_inputs_are_named_and_ordered_as_forwards_parameters(tmp_path: Path, factory: str) -> None:
    write(tmp_path, CODE + TWO_INPUTS)
    store = ArtifactStore(tmp_path)
    data, model = ({"kind": "factory", "factory": f"own_code:{each}"} for each in (factory, "Scaled"))
    dataset = prepare(own(tmp_path, data=data, model=model), store)
    assert read_description(dataset, store).inputs == ("rows", "scale")
    assert dataset.splits == {"calibration": 8, "test": 8}
    test = load_samples(dataset, "test", store)
    assert {name: list(test[name].shape) for name in ("rows", "scale")} == {"rows": [8, 3], "scale": [8]}


@pytest.mark.slow
def test_without_a_calibration_split_evenly_spaced_training_rows_calibrate(tmp_path: Path) -> None:
    rows = "[(torch.full((3,), float(number)), 1) for number in range(600)]"
    write(tmp_path, f'{CODE}\ndef untaken():\n    rows = {rows}\n    return {{"train": rows, "test": rows}}\n')
    store = ArtifactStore(tmp_path)
    dataset = prepare(own(tmp_path, data={"kind": "factory", "factory": "own_code:untaken"}), store)
    assert dataset.splits == {"calibration": 256, "test": 600}
    assert load_samples(dataset, "calibration", store)["rows"][:4, 0].tolist() == [0, 2, 4, 7]
    assert dataset.notes == ('the "calibration" split is missing, so calibration uses 256 of 600 training rows',)


def test_a_search_chooses_on_the_users_validation_split(tmp_path: Path) -> None:
    write(tmp_path, f"{CODE}\ndef more():\n    return splits() | {{'val': [(torch.full((3,), 7.0), 1)] * 5}}\n")
    store = ArtifactStore(tmp_path)
    dataset = prepare(own(tmp_path, data={"kind": "factory", "factory": "own_code:more"}), store)
    assert dataset.splits == {"calibration": 10, "test": 20, "valid": 5}
    assert Selection.of(dataset) == Selection("valid", (5,))
    assert load_samples(dataset, "valid", store)["rows"].unique().tolist() == [7.0]


def test_edited_code_and_files_are_prepared_again_but_edited_comments_are_not(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "numbers.txt").write_text("1")
    store = ArtifactStore(tmp_path)
    workload = own(tmp_path, data={"kind": "factory", "factory": "own_code:splits", "files": ["numbers.txt"]})
    digests = [prepare(workload, store).digest]
    write(tmp_path, CODE + "# edited\n")
    digests.append(prepare(workload, store).digest)
    write(tmp_path, CODE + "EDITED = 1\n")
    digests.append(prepare(workload, store).digest)
    (tmp_path / "numbers.txt").write_text("2")
    digests.append(prepare(workload, store).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_a_collate_functions_batches_are_kept_and_single_rows_are_not_padded(tmp_path: Path) -> None:
    write(tmp_path, CODE + SEQUENCES)
    store = ArtifactStore(tmp_path)
    workload = own(tmp_path, data=PADDED, model=MEAN)
    dataset = prepare(workload, store)
    together, singly = (load_test(dataset, store, singly=each) for each in (False, True))
    assert [batch.size for batch in together.batches(3)] == [4, 4, 2]
    assert [batch.inputs[0].shape[1] for batch in singly.batches(1)] == [2 + index % 5 for index in range(10)]
    assert {
        name: list(each.shape) for name, each in example_inputs(workload, dataset, store, batch_size=6).items()
    } == {
        "steps": [6, 5, 2],
        "lengths": [6],
    }


@pytest.mark.parametrize(
    ("rows", "length", "counts"),
    [(1, None, [2]), (1, 4, [4]), (1, 9, [6]), (3, 4, [2, 3, 4]), (2, 9, [6, 2])],
    ids=["the first", "one that has it", "the longest, repeated", "cut", "padded and repeated"],
)
@pytest.mark.slow
def test_examples_have_as_many_steps_as_are_asked_for(
    tmp_path: Path, rows: int, length: int | None, counts: list[int]
) -> None:
    write(tmp_path, CODE + SEQUENCES)
    store = ArtifactStore(tmp_path)
    workload = own(tmp_path, data=PADDED, model=MEAN, benchmark={"sequence_length": length} if length else {})
    dataset = prepare(workload, store)
    found = example_inputs(workload, dataset, store, batch_size=rows)
    assert list(found["steps"].shape) == [rows, length or 2, 2]
    assert found["lengths"].tolist() == counts


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("return []", ConfigurationError, "does not return a mapping of data sets: AttributeError"),
        ('return {"test": [(torch.ones(3), 1)]}', InputError, "returned too few samples"),
        (
            'return {"calibration": iter("a"), "test": "a"}',
            ConfigurationError,
            "does not return a mapping of data sets",
        ),
        ('return dict.fromkeys(("calibration", "test"), [torch.ones(3)])', ConfigurationError, "expected a pair"),
        (
            'return dict.fromkeys(("calibration", "test"), [(torch.ones(3), 1), (torch.ones(4), 1)])',
            ConfigurationError,
            r'input "rows": the items have different shapes \(\[3\], \[4\]\).*data.collate',
        ),
        (
            'return dict.fromkeys(("calibration", "test"), [(torch.full((3,), torch.nan), 1)])',
            InputError,
            "contains NaN",
        ),
        (
            'return dict.fromkeys(("calibration", "test"), [({"columns": torch.ones(3)}, 1)])',
            ConfigurationError,
            r"1 input \(columns\), but the model's forward takes rows",
        ),
        (
            'return dict.fromkeys(("calibration", "test"), [("text", 1)])',
            ConfigurationError,
            'input "rows": the value cannot be converted to a tensor',
        ),
        ("return 1 / 0", ConfigurationError, r"ZeroDivisionError: division by zero[^$]*own_code.py.*in broken"),
    ],
)
@pytest.mark.slow
def test_an_invalid_data_set_is_one_clear_message(
    tmp_path: Path, code: str, error: type[Exception], message: str
) -> None:
    write(tmp_path, f"{CODE}\ndef broken():\n    {code}\n")
    workload = own(tmp_path, data={"kind": "factory", "factory": "own_code:broken"})
    with pytest.raises(error, match=message) as caught:
        prepare(workload, ArtifactStore(tmp_path))
    assert "tasks/" not in str(caught.value)

"""The built-in task: what its texts are, and that no split knows another's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tasks.data.python_sources import CLASSES, sample_sources, texts_of
from tasks.data.sections import PythonSources

SOURCE = '''"""What the module is for.

A second paragraph of it.
"""

# One comment goes on
# in a second line.
def divide(a, b):
    if b == 0:
        raise ValueError("the divisor must not be zero")
    quotient, remainder = divmod(a, b)  # both of them together
    return x
'''


@pytest.mark.slow
def test_texts_are_classified_as_python_parses_them(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE, encoding="utf-8")
    found = set(texts_of(path))
    assert found == {
        ("What the module is for.", "docstring"),
        ("A second paragraph of it.", "docstring"),
        ("One comment goes on in a second line.", "comment"),
        ("both of them together", "comment"),
        ("the divisor must not be zero", "message"),
        ("quotient, remainder = divmod(a, b)", "code"),
        ('if b == 0: raise ValueError("the divisor must not be zero")', "code"),
    }


@pytest.mark.slow
@pytest.mark.long
def test_splits_share_no_text_and_classes_are_balanced() -> None:
    data = PythonSources(kind="python-sources", train=200, valid=40, test=80, calibration=20)
    splits = sample_sources(data)
    assert {name: len(columns["text"]) for name, columns in splits.items()} == {
        "train": 200, "valid": 40, "test": 80, "calibration": 20,
    }  # fmt: skip
    texts = [text for columns in splits.values() for text in columns["text"]]
    assert len(set(texts)) == len(texts)
    assert Counter(splits["test"]["label"]) == dict.fromkeys(CLASSES, 20)
    assert sample_sources(data) == splits
    assert sample_sources(data.model_copy(update={"seed": 1})) != splits

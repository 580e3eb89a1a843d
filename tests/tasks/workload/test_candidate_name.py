"""Names of candidates: text and name are two forms of one thing, in fields, keys and orders."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tasks.workload.recipe import CandidateName

NAMES = st.builds(CandidateName, *[st.from_regex(r"[a-z0-9][a-z0-9.-]{0,8}", fullmatch=True)] * 2)


class Holder(BaseModel, frozen=True):
    one: CandidateName | None
    speeds: dict[CandidateName, float]


@given(NAMES)
def test_a_name_survives_text_json_and_pickle(name: CandidateName) -> None:
    assert CandidateName.parse(str(name)) == name
    assert f"{name}" == str(name) == f"{name.recipe}/{name.runtime}"
    assert pickle.loads(pickle.dumps(name)) == name
    held = Holder(one=name, speeds={name: 2.0})
    assert held.model_dump(mode="json") == {"one": str(name), "speeds": {str(name): 2.0}}
    assert Holder.model_validate_json(held.model_dump_json()) == held
    assert Holder.model_validate(held.model_dump()) == held


@given(st.lists(NAMES))
def test_names_are_sorted_as_text_and_equal_names_are_one_key(names: list[CandidateName]) -> None:
    assert [str(name) for name in sorted(names)] == sorted(map(str, names))
    assert len(dict.fromkeys(names)) == len(set(map(str, names)))


@pytest.mark.parametrize("text", ["", "int8", "int8/", "/eager"])
def test_text_without_a_recipe_or_a_runtime_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f'"{text}" is not a candidate; write recipe/runtime'):
        CandidateName.parse(text)
    with pytest.raises(ValidationError, match="is not a candidate"):
        Holder.model_validate_json(f'{{"one": "{text}", "speeds": {{}}}}')

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.console import age, became, ratio_within, signed
from storage.humanize import MISSING, ratio


@given(value=st.floats(0.01, 1000), share=st.floats(1.0, 3.0))
def test_an_interval_is_half_its_width_on_the_logarithm(value: float, share: float) -> None:
    shown = ratio_within(value, value / share, value * share)
    assert shown == f"{ratio(value)} ±{100 * (share - 1):.0f}%"


def test_what_is_not_known_is_a_dash_or_left_out() -> None:
    assert (signed(None), ratio_within(None, 1.0, 2.0)) == (MISSING,) * 2
    assert ratio_within(2.0, None, 2.1) == ratio_within(2.0, 1.9, None) == "2.00×"


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (dt.timedelta(seconds=-5), "just now"),
        (dt.timedelta(seconds=59), "just now"),
        (dt.timedelta(minutes=1), "1 minute ago"),
        (dt.timedelta(hours=23, minutes=59), "23 hours ago"),
        (dt.timedelta(days=2), "2 days ago"),
    ],
)
def test_an_age_is_in_its_largest_whole_unit(span: dt.timedelta, expected: str) -> None:
    assert age(span) == expected


def test_a_difference_has_a_sign() -> None:
    assert (signed(-0.0123), signed(0.5)) == ("-0.012", "+0.5")


@pytest.mark.parametrize(
    ("outcome", "expected"), [("promote", "promoted"), ("stays", "stays"), ("failed", "failed"), (None, MISSING)]
)
@pytest.mark.slow
def test_an_outcome_is_one_word(outcome: str | None, expected: str) -> None:
    assert became({"became": outcome}) == expected

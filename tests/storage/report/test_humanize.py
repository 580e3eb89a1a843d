from __future__ import annotations

import datetime as dt

import pytest

from storage import report


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (report.size(999), "999 B"),
        (report.size(10_141_653), "10.1 MB"),
        (report.size(2.5e9), "2.5 GB"),
        (report.duration(1.5), "1.5 s"),
        (report.duration(0.00123), "1.23 ms"),
        (report.duration(45e-6), "45 µs"),
        (report.duration(7e-9), "7 ns"),
        (report.ratio(1.7), "1.70×"),
        (report.ratio(1.7, 1.65, 1.76), "1.70× (1.65 to 1.76)"),
        (report.number(0.123456), "0.1235"),
        (report.number(0.05, "+.1%"), "+5.0%"),
        (report.time(dt.datetime(2026, 3, 1, 4, tzinfo=dt.timezone(dt.timedelta(hours=1)))), "2026-03-01 03:00 UTC"),
        (report.metric(2048, "size_bytes"), "2.05 kB"),
        (report.metric(2, "speedup"), "2.00×"),
        (report.metric(2, "quality"), "2"),
    ],
)
def test_numbers_are_short_and_have_their_unit(shown: str, expected: str) -> None:
    assert shown == expected


def test_what_is_missing_is_a_dash() -> None:
    for show in (report.size, report.duration, report.ratio, report.number, report.time):
        assert show(None) == "–"

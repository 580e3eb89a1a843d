from __future__ import annotations

import datetime as dt

import pytest

from storage import humanize


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (humanize.size(999), "999 B"),
        (humanize.size(10_141_653), "10.1 MB"),
        (humanize.size(2.5e9), "2.5 GB"),
        (humanize.duration(1.5), "1.5 s"),
        (humanize.duration(0.00123), "1.23 ms"),
        (humanize.duration(45e-6), "45 µs"),
        (humanize.duration(7e-9), "7 ns"),
        (humanize.ratio(1.7), "1.70×"),
        (humanize.ratio(1.7, 1.65, 1.76), "1.70× (1.65 to 1.76)"),
        (humanize.difference(-0.21, humanize.quality_unit("top1")), "−0.21 points"),
        (humanize.difference(1.5, humanize.quality_unit("difference_percent")), "+1.5%"),
        (humanize.difference(0.002, humanize.quality_unit("loss")), "+0.002"),
        (humanize.difference(-0.0, " points"), "0"),
        (humanize.number(0.123456), "0.1235"),
        (humanize.percent(0.31), "31%"),
        (humanize.percent(0.0214), "2.1%"),
        (humanize.change(-0.151), "−15.1%"),
        (
            humanize.moment(dt.datetime(2026, 3, 1, 4, tzinfo=dt.timezone(dt.timedelta(hours=1)))),
            "2026-03-01 03:00 UTC",
        ),
        (humanize.metric(2048, "size_bytes"), "2.05 kB"),
        (humanize.metric(2, "speedup"), "2.00×"),
        (humanize.metric(2, "quality"), "2"),
        (humanize.plural(1, "alarm"), "1 alarm"),
        (humanize.plural(2, "alarm"), "2 alarms"),
        (humanize.name("a<b>/eager"), "a&lt;b&gt;/<wbr>eager"),
    ],
)
@pytest.mark.slow
def test_numbers_are_short_and_have_their_unit(shown: str, expected: str) -> None:
    assert shown == expected


def test_a_missing_value_is_a_dash() -> None:
    shown = (
        humanize.size, humanize.duration, humanize.ratio, humanize.difference, humanize.number, humanize.percent,
        humanize.change, humanize.moment,
    )  # fmt: skip
    assert {show(None) for show in shown} == {"–"}

from __future__ import annotations

import datetime as dt
import html
import html.parser
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flows.commands.query import report as command
from storage.errors import ConfigurationError
from storage.report import write_report
from storage.results.catalog import refresh
from tests.storage.report.nights import FIRST, LAST
from tests.storage.results.rows import baseline, measurement, write_night


class Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_float_baseline_is_listed_with_its_warnings(tmp_path: Path) -> None:
    doubted = baseline("run", LAST, int8_time_share=0.0, doubts='["83% of the time is a::slow: compare"]')
    write_night(tmp_path, LAST, [doubted, measurement("run", LAST)], "run")
    write_report(tmp_path, LAST, tmp_path / "report.html")
    assert "83% of the time is a::slow: compare" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_needs_nothing_else(full_page: Path) -> None:
    text = full_page.read_text(encoding="utf-8")
    tags = Tags(text).found
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags}
    links = [
        value for _, attributes in tags for name, value in attributes.items() if name in ("href", "src", "xlink:href")
    ]
    assert links
    assert all(value and value.startswith("#") for value in links)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_text_from_users_is_escaped(full_page: Path) -> None:
    text = full_page.read_text(encoding="utf-8")
    assert "export <b>" not in text
    assert "export &lt;b&gt;" in text


def test_the_report_begins_with_decisions_and_alerts(full_page: Path) -> None:
    text = full_page.read_text(encoding="utf-8")
    summary = text[text.index('<ul class="summary">') : text.index("<nav")]
    found = re.findall(r"<li><[^>]*>(.*?)</", summary)
    assert found == ["▲ 1 promoted", "● 1 kept", "? 1 held", "1 alert", "2 failures"]


@pytest.mark.slow
def test_the_first_table_says_by_how_much_the_current_bundle_is_better(full_page: Path) -> None:
    page = full_page.read_text(encoding="utf-8")
    assert cells(page, "faster") == ["–", "6.20× (6.14 to 6.26)", "2.66× (2.63 to 2.69)"]
    assert cells(page, "smaller") == ["–", "2.50× 11.9 MB", "2.50× 360 kB"]
    assert cells(page, "quality") == ["–", "−0.21 points top1 91.3", "+0.002 loss 4.002"]


@pytest.mark.slow
def test_the_report_contains_every_section_and_finding(full_page: Path) -> None:
    text = html.unescape(full_page.read_text(encoding="utf-8"))
    for part in (
        "slower",
        "torch 2.14.0 → 2.15.0",
        "Two copies of the baseline differed by up to",
        "as fast as the fastest float candidate, float/onnxruntime",
        "qat/onnxruntime, qat/torchscript",
        "all 3 lines",
        "A processor",
        "Run run-15",
    ):
        assert part in text, part
    assert re.search(r"−1[45]\.\d%", text)
    assert text.count('role="img"') == 3


@pytest.mark.slow
def test_an_older_night_is_reported_as_it_was(filled: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        command,
        ["--night", "2026-03-01", "-o", str(tmp_path / "sub" / "r.html"), "--store", str(filled)],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    text = (tmp_path / "sub" / "r.html").read_text(encoding="utf-8")
    assert "Night of 2026-03-01" in text
    assert "The plot appears from the second night on." in text
    assert "slower" not in text


def test_a_store_of_bare_rows_is_reported(tmp_path: Path) -> None:
    write_night(tmp_path, FIRST, [baseline("run", FIRST), measurement("run", FIRST, quality_metric=None)], "run")
    refresh(tmp_path)
    write_report(tmp_path, None, tmp_path / "r.html")
    assert "✕ 1 not judged" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_night_without_results_is_refused_with_a_list_of_nights(filled: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the first is 2026-03-01, and the last is 2026-03-16"):
        write_report(filled, dt.date(2020, 1, 1), tmp_path / "r.html")


def cells(page: str, label: str) -> list[str]:
    """The text of every row's cell under this heading."""
    found = re.findall(f'<td data-label="{label}" class="n">(.*?)</td>', html.unescape(page), re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in found]


@pytest.mark.slow
def test_both_speedups_are_in_adjacent_columns(full_page: Path) -> None:
    page = re.sub("<details>.*?</details>", "", full_page.read_text(encoding="utf-8"), flags=re.DOTALL)
    beside = dict(zip(cells(page, "cold"), cells(page, "speed-up"), strict=True))
    assert beside["3.47× (3.31 to 3.63)"] == "6.20× (6.14 to 6.26)"
    assert "12 ms 21.4 ms cold" in cells(page, "latency")
    assert "with cold caches" not in page


@pytest.mark.slow
def test_a_workload_that_is_decided_with_cold_caches_is_ordered_by_them_and_says_so(tmp_path: Path) -> None:
    def of(recipe: str, speedup: float, cold: float) -> dict[str, Any]:
        ends = {f"cold_speedup_{end}": cold * factor for end, factor in (("low", 0.9), ("high", 1.1))}
        ends |= {f"cold_over_current{end}": cold for end in ("", "_low", "_high")}
        return measurement("run", FIRST, recipe=recipe, caches="cold", speedup=speedup, cold_speedup=cold, **ends)

    rows = [baseline("run", FIRST, caches="cold", cold_speedup=1.0), of("loop", 9.0, 2.0), of("rarely", 3.0, 4.0)]
    write_night(tmp_path, FIRST, rows, "run")
    refresh(tmp_path)
    write_report(tmp_path, None, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert cells(page, "cold")[:2] == [
        "4.00× (3.60 to 4.40) over current 4.00× (4.00 to 4.00)",
        "2.00× (1.80 to 2.20) over current 2.00× (2.00 to 2.00)",
    ]
    assert cells(page, "speed-up")[:2] == ["3.00× (2.97 to 3.03)", "9.00× (8.91 to 9.09)"]
    assert "The gate uses cold calls." in page


@pytest.mark.slow
def test_without_matplotlib_the_page_says_that_it_has_no_pictures(
    full_page: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "matplotlib" not in full_page.read_text(encoding="utf-8")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = tmp_path / "report.html"
    write_report(filled, None, page)
    text = page.read_text(encoding="utf-8")
    assert "pip install &#39;nightquant[pictures]&#39;" in text or "pip install 'nightquant[pictures]'" in text
    assert 'role="img"' not in text

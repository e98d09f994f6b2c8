"""The bench's report: built from stored results, traced to their files, whole in one HTML file.

tests/fixtures/bench holds results with made-up figures: four cases, of which one lacks the mean,
two have a run that was left out, one has peers, and one stands in the short form's file alone.
"""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.report.__main__ import main
from bench.report.quoted import QUOTED
from bench.report.results import read_results
from tests.support.repo import ROOT

STORED = ROOT / "tests/fixtures/bench"
CHARTS = (
    "latency-by-percentile",
    "latency-against-load",
    "cpu-per-label-by-peer",
    "cpu-per-label",
    "mean-beside-p99",
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The texts of all files of a report, by name."""
    out = tmp_path_factory.mktemp("report")
    assert main(["--results", str(STORED), "--out", str(out)]) == 0
    return {file.name: file.read_text() for file in out.iterdir()}


def row(page: str, begin: str) -> list[str]:
    """The cells of the only table row with this place, its place left out."""
    [line] = [line for line in page.splitlines() if line.startswith(f"| {begin} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_a_report_is_a_page_with_charts_beside_it_and_one_file_with_all(
    pages: Mapping[str, str],
) -> None:
    assert set(pages) == {"report.md", "report.html", *(f"{chart}.svg" for chart in CHARTS)}
    for chart in CHARTS:
        ET.fromstring(pages[f"{chart}.svg"])
        assert f"]({chart}.svg)" in pages["report.md"]
        assert pages[f"{chart}.svg"] in pages["report.html"]


def test_the_html_page_needs_nothing_from_elsewhere(pages: Mapping[str, str]) -> None:
    page = pages["report.html"]
    loaded = re.findall(r'(?:src|href)\s*=\s*"([^"]*)"', page)
    assert [link for link in loaded if not link.startswith("#")] == []
    assert "<script" not in page
    assert "@import" not in page


def test_a_side_s_figures_are_those_of_its_file(pages: Mapping[str, str]) -> None:
    stored = json.loads((STORED / "unary-2300-journaled.json").read_text())
    figures = stored["sides"]["labeler"]
    cells = row(pages["report.md"], "unary-2300-journaled: labeler")
    assert cells[:3] == ["2,300", f"{figures['server_cpu_us_per_label']:.1f}", "1.40"]
    assert cells[3] == f"{figures['client_latency_us_p99'] / 1e3:.2f}"


@pytest.mark.parametrize("page", ["report.md", "report.html"])
def test_every_chart_names_the_file_and_the_side_of_what_it_shows(
    pages: Mapping[str, str], page: str
) -> None:
    plain = re.sub(r"</?code>", "`", pages[page])
    assert "from unary-1150-journaled.json, side `labeler`, 2 runs" in plain
    assert "from latest.json, case unary-saturated-buffered, side `echo`, 2 runs" in plain


def test_a_run_that_was_left_out_is_in_no_figure() -> None:
    [result] = [r for r in read_results(STORED) if r.name == "unary-1150-journaled"]
    sides = {side.name: side for side in result.sides}
    assert sides["labeler"].runs("client_latency_us_p99") == [7000, 8000]
    # The pair is left out whole: the other side's run had another neighbour.
    assert len(sides["echo"].valid_runs) == 2


def test_a_case_s_own_file_goes_before_the_short_form_s(pages: Mapping[str, str]) -> None:
    files = {result.name: result.file for result in read_results(STORED)}
    assert files["unary-2300-journaled"] == "unary-2300-journaled.json"
    assert files["unary-saturated-buffered"] == "latest.json, case unary-saturated-buffered"
    assert "An older look" not in pages["report.md"]


def test_the_mean_stands_beside_the_percentiles_and_what_lacks_it_is_named(
    pages: Mapping[str, str],
) -> None:
    page = pages["report.md"]
    mean = page[page.index("### Mean and p99") : page.index("## Known from elsewhere")]
    assert row(mean, "unary-1150-journaled: labeler") == [
        *("1.50", "1.20", "3.50", "7.50", "12.50"),
        "5.0×",
    ]
    assert "No mean was kept in unary-2300-journaled.json." in mean
    assert "saturated" not in mean[mean.index("###") :]


def test_a_closed_loop_has_no_latency_in_a_table(pages: Mapping[str, str]) -> None:
    cells = row(pages["report.md"], "unary-saturated-buffered: labeler")
    assert cells[2:5] == ["closed loop"] * 3


def test_what_is_quoted_is_said_to_be_so_and_stands_in_no_chart_of_figures(
    pages: Mapping[str, str],
) -> None:
    page = pages["report.md"]
    quoted = page[page.index("## Known from elsewhere") : page.index("## Every case")]
    assert "Quoted, not measured here" in quoted
    for figure in ("78 ms", "72 ms", "143 ms", "212 ms", "9.5 ms at 350", "120 ms → 340 ms"):
        assert figure in quoted
        # Nor anywhere else on the page, as if it were one of ours.
        assert figure not in page.replace(quoted, "")
    assert len(QUOTED) == 7
    for chart in CHARTS:
        assert not [known.of for known in QUOTED if known.of in pages[f"{chart}.svg"]]


def sources(page: str, chart: str) -> str:
    """What stands under a chart: where each of its figures is from."""
    section = page[page.index(f"![{chart}]") :]
    return section[: section.index("## ")]


def test_a_peer_s_cpu_has_a_chart_of_its_own_beside_ours(pages: Mapping[str, str]) -> None:
    by_peer = sources(pages["report.md"], "CPU a label by peer")
    assert "peers-500.json, side `labeler`" in by_peer
    assert "peers-500.json, side `mosec`" in by_peer
    assert "unary-2300-journaled.json" not in by_peer
    assert "peers-500.json" not in sources(pages["report.md"], "CPU a label")


def test_a_peer_at_two_rates_is_a_line_of_latency_against_load(pages: Mapping[str, str]) -> None:
    found = sources(pages["report.md"], "Latency against load")
    assert "peers-500.json, side `mosec`, 2 runs" in found
    assert "peers-500.json, side `mosec-busier`, 2 runs" in found
    assert "mosec --batch-rows 64, http_predict" in pages["latency-against-load.svg"]


def test_a_case_shows_its_limits_what_was_left_out_and_what_could_not_run(
    pages: Mapping[str, str],
) -> None:
    page = pages["report.md"]
    case = page[page.index("### peers-500") :]
    assert "2 pairs of 5 s, 1 more left out, whose sender was late" in case
    assert "a bare echo 60.0 µs CPU a label, p99 0.60 ms; fdatasync p99 0.91 ms" in case
    assert "ONNX Runtime 17.8 µs a row, 1 at once" in case
    assert "triton could not run: could not be installed: no wheel for this machine" in case


def test_a_side_that_fell_behind_its_schedule_is_named_from_older_files_too(tmp_path: Path) -> None:
    shutil.copytree(STORED, tmp_path / "results")
    file = tmp_path / "results" / "peers-500.json"
    document = json.loads(file.read_text())
    document["sides"]["mosec"]["client_latency_us_p99"] = 1.6e6
    file.write_text(json.dumps(document))
    assert main(["--results", str(file.parent), "--out", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "report.md").read_text()
    assert re.findall(r"- (\w+) fell behind: p99 1\.6 s", page) == ["mosec"]


def test_verdicts_and_guards_are_told_as_the_file_has_them(pages: Mapping[str, str]) -> None:
    page = pages["report.md"]
    assert "labeler/echo 2.53 [2.50–2.56], equal sides 1.01 [1.01–1.01]" in page
    assert "demanded at most 2.0: missed" in page
    assert "guard `errors_total == 0`: BROKEN, labeler has 3" in page
    assert "a quick look, not a measurement: 2 pairs" in page


def test_the_same_results_give_the_same_bytes(tmp_path: Path, pages: Mapping[str, str]) -> None:
    assert main(["--results", str(STORED), "--out", str(tmp_path)]) == 0
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == pages


def test_without_a_result_there_is_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--results", str(tmp_path)]) == 2
    assert "no result in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"case": "x"}'])
def test_a_file_that_is_no_result_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    shutil.copytree(STORED, tmp_path, dirs_exist_ok=True)
    (tmp_path / "broken.json").write_text(text)
    assert main(["--results", str(tmp_path)]) == 2
    assert "broken.json" in capsys.readouterr().err


def test_the_committed_report_is_what_the_committed_results_give(tmp_path: Path) -> None:
    assert main(["--results", str(ROOT / "bench/results"), "--out", str(tmp_path)]) == 0
    committed = (ROOT / "bench/results/report/report.md").read_text()
    assert (tmp_path / "report.md").read_text() == committed, "`make bench-report` makes it anew"

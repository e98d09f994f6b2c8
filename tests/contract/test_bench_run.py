"""The bench as a command: what its words mean, and what its short form writes down.

The figures are planted: they are data here. Real runs are in test_bench_cases.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import run
from bench.suite import short
from bench.suite.case import CaseError, case_names, read_case
from bench.suite.compare import Pair, Run, judge
from bench.suite.measure import Measured, MeasureError, Options
from bench.suite.metrics import METRICS
from bench.suite.show import document
from bench.writer.cases import CASES as WRITER_CASES

CPU = "server_cpu_us_per_label"


def planted(name: str, cpu: float = 90.0, invalid: str = "") -> Measured:
    """Two pairs of the case, in which each side's CPU is a quarter above that of the one before."""
    whole = dict.fromkeys(METRICS, 5000.0) | {"errors_total": 0.0}
    because = (invalid,) if invalid else ()
    runs = {
        side: Run(whole | {CPU: cpu * 1.25**place}, because)
        for place, side in enumerate(read_case(name).sides)
    }
    return Measured([Pair(runs), Pair(runs)], {}, 900.0)


def documents(invalid: str = "") -> list[dict[str, Any]]:
    found = []
    for name in short.CASES:
        case, measured = read_case(name), planted(name, invalid=invalid)
        report = judge(case, measured.pairs, 2, 3.0)
        found.append(document(case, report, measured, 3.0))
    return found


def test_every_case_of_the_short_form_is_there_and_can_be_run_so_briefly() -> None:
    shapes = {
        side.load.schedule.shape for name in short.CASES for side in read_case(name).sides.values()
    }
    assert shapes <= {"constant", "saturate"}  # no shape whose own times would not fit


def test_the_short_form_fits_into_three_minutes_and_with_pairs_run_again_into_half_one_more() -> (
    None
):
    seconds, pair_s_max = 0.0, 0.0
    for name in short.CASES:
        sides = [*read_case(name).sides.values()]
        # Before and after its pairs a case without an echo runs one with its first side's load.
        floor = [] if any(side.server == "echo" for side in sides) else [sides[0]] * 2
        # A second beside the warm-up and the run itself for what each run begins and ends with.
        runs = [*sides * short.PAIRS, *floor]
        seconds += sum(side.load.warmup_s + short.SECONDS + 1 for side in runs)
        pair_s = sum(side.load.warmup_s + short.SECONDS + 1 for side in sides)
        pair_s_max = max(pair_s_max, pair_s)
    assert seconds <= 180
    assert seconds + short.SPARE * pair_s_max <= 220


def test_the_summary_has_a_line_for_each_side_and_says_what_it_is() -> None:
    text = "\n".join(short.summary(documents(), 2))
    assert "1.25×" in text
    assert "a quick look of 2 pairs of 3 s" in text
    for name in short.CASES:
        assert f"{name}: " in text
    # A closed loop's latencies are of its own making.
    saturated = text[text.index("unary-saturated-buffered") :].splitlines()
    assert saturated[2].split()[-3:] == ["-", "-", "-"]


def test_a_side_without_a_valid_run_has_no_figures_in_the_summary() -> None:
    assert "labeler                     NOT VALID" in "\n".join(short.summary(documents("late"), 2))


def test_a_case_with_fewer_valid_pairs_says_so_and_the_whole_names_what_was_run() -> None:
    found = documents()
    found[0]["pairs"] = 1
    text = "\n".join(short.summary(found, 2))
    assert text.count("of 2 pairs are valid") == 1
    assert "1 of 2 pairs are valid" in text.split(short.CASES[1])[0]
    assert "a quick look of 2 pairs of 3 s" in text
    assert short.latest(found, 2)["pairs"] == 2


def test_a_side_that_falls_behind_stands_in_the_summary() -> None:
    found = documents()
    found[0]["sides"]["labeler"]["client_latency_us_p99"] = 1.6e6
    assert "labeler fell behind: p99 1.6 s" in "\n".join(short.summary(found, 2))


def test_a_summary_says_what_is_missing_where_no_case_has_all_pairs() -> None:
    found = [document | {"pairs": 1} for document in documents()]
    text = "\n".join(short.summary(found, 2))
    assert text.count("1 of 2 pairs are valid") == len(short.CASES)
    assert "a quick look of 2 pairs" in text


def test_the_cases_of_the_short_form_share_its_spare_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def late(case: Any, options: Options, *_: object) -> Measured:
        tries.append(options.tries)
        pair = planted(case.name, invalid="late").pairs[0]
        return Measured([pair] * min(options.tries, options.pairs + 2), {}, 900.0)

    monkeypatch.setattr(run, "measure", late)
    assert run.main(["--short", "--out", str(tmp_path)]) == 0
    assert tries == [6, 4, 3, 3, 3]


def test_a_measurement_may_run_each_pair_again() -> None:
    assert Options(8).tries == 16


def test_a_broken_guard_stands_in_the_summary() -> None:
    found = documents()
    found[0]["guards"][0] |= {"holds": False, "value": 3.0}
    assert "BROKEN errors_total == 0: echo has 3.0" in "\n".join(short.summary(found, 2))


def test_the_latest_file_has_every_document_whole() -> None:
    found = short.latest(documents(), 2)
    assert list(found["cases"]) == list(short.CASES)
    assert found["measurement"] is False
    for name, whole in found["cases"].items():
        assert len(whole["runs"]) == 2
        assert whole["case"] == name
    assert json.loads(json.dumps(found)) == found


def test_a_list_names_every_case_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if "?" in line}
    assert listed == {*case_names(), *WRITER_CASES}


@pytest.mark.parametrize("words", [[], ["--list", "--all"], ["echo-floor", "--short"]])
def test_what_is_to_be_run_is_said_once(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(words)
    assert ended.value.code == 2
    assert "one of --list, --short, --peers and --all" in capsys.readouterr().err


def test_the_short_form_writes_its_file_and_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "measure", lambda case, *_: planted(case.name))
    assert run.main(["--short", "--out", str(tmp_path)]) == 0
    assert list(json.loads((tmp_path / "latest.json").read_text())["cases"]) == list(short.CASES)
    assert "make bench-all" in capsys.readouterr().out


def test_a_case_that_cannot_be_run_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(case: Any, *_: object) -> Measured:
        if case.name == "echo-floor":
            raise MeasureError("the sender exits with 1")
        return planted(case.name)

    monkeypatch.setattr(run, "measure", measured)
    assert run.main(["echo-floor", "float-vs-double", "--out", str(tmp_path)]) == 2
    assert "echo-floor: the sender exits with 1" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["float-vs-double.json"]


def test_a_name_that_is_no_case_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["echo-flor", "echo-floor"]) == 2
    assert "did you mean `echo-floor`?" in capsys.readouterr().err
    with pytest.raises(CaseError):
        read_case("echo-flor")

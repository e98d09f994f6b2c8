"""The bench: its cases are read strictly, and its verdicts say no more than the runs show.

The rules are tested with planted figures, which are data here; one slow test runs a case for real.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.suite.case import Case, CaseError, case_names, read_case
from bench.suite.compare import Pair, Report, Run, judge, order
from bench.suite.measure import Measured
from bench.suite.metrics import METRICS, STAGES, behind, figures_of, over_runs
from bench.suite.show import document, lines, progress_line
from tests.support.repo import ROOT

CPU = "server_cpu_us_per_label"
PLAIN = """
about = "How much does the one cost in units of the other?"
seed = 7
guards = ["errors_total == 0", "labeler.client_latency_us_p99 <= 10000"]

[load]
rpc = "label"
durability = "BUFFERED"
robots = 64
schedule = { shape = "constant", rate_per_s = 2300 }

[sides.echo]
server = "echo"

[sides.labeler]
server = "labeler"

[[goals]]
metric = "server_cpu_us_per_label"
side = "labeler"
against = "echo"
ratio_max = 2.0
"""


def written(folder: Path, text: str) -> Case:
    (folder / "planted").mkdir(exist_ok=True)
    (folder / "planted" / "case.toml").write_text(text)
    return read_case("planted", folder)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """A case of two sides, with a demand of 2 on CPU and two guards."""
    return written(tmp_path, PLAIN)


def run(cpu: float, errors: int = 0, p99: float = 5000, invalid: Sequence[str] = ()) -> Run:
    figures = {CPU: cpu, "errors_total": errors, "client_latency_us_p99": p99}
    return Run(figures, tuple(invalid))


def pairs_of(echo: Sequence[float], labeler: Sequence[float]) -> list[Pair]:
    return [Pair({"echo": run(a), "labeler": run(b)}) for a, b in zip(echo, labeler, strict=True)]


def judged(case: Case, pairs: Sequence[Pair], asked: int = 8, seconds: float = 5.0) -> Report:
    return judge(case, pairs, asked, seconds)


QUIET = [40, 41, 40, 39, 40, 40, 41, 40]


# --- the format


@pytest.mark.parametrize("name", case_names())
def test_every_committed_case_asks_a_question_and_can_be_run(name: str) -> None:
    assert read_case(name).about.endswith("?")


def test_every_case_that_the_project_began_with_is_there() -> None:
    first = {"echo-floor", "batch-1000", "float-vs-double", "connections-2300"}
    rpcs = {
        f"{rpc}-{load}-{level}"
        for rpc in ("unary", "stream")
        for load in ("2300", "saturated")
        for level in ("buffered", "journaled")
    }
    assert first | rpcs <= set(case_names())


def test_every_question_that_the_suite_is_to_answer_has_its_case() -> None:
    rates = {
        f"{rpc}-{load}-{level}"
        for rpc in ("unary", "stream")
        for load in ("1150", "2300", "saturated")
        for level in ("buffered", "journaled")
    }
    beside = {"bulk-beside-robots", "models-swapped", "store-outage", "flash-crowd", "gil-burner"}
    levels = {"durability-sqlite", "durability-dynamodb", "models-at-once"}
    assert rates | beside | levels | {"payload-raw64", "float-vs-double"} <= set(case_names())


@pytest.mark.parametrize("name", case_names())
def test_every_committed_case_refuses_errors_and_is_long_enough(name: str) -> None:
    case = read_case(name)
    assert "errors_total == 0" in [guard.text for guard in case.guards]
    assert all(side.load.duration_s >= 5 for side in case.sides.values())


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("seed = 7", "sed = 7", "sed = 7: unknown key"),
        ("robots = 64", "robotz = 64", "load.robotz = 64: unknown key"),
        ("robots = 64", "robots = 0", "load.robots = 0: Input should be greater"),
        ("robots = 64", 'robots = "64"', 'load.robots = "64": Input should be a valid integer'),
        ("robots = 64", "robots = 8", "load.connections = 16: expected at most `robots` (8)"),
        ("robots = 64", "", "load.robots: missing"),
        ('"constant"', '"sawtooth"', "load.schedule"),
        ("rate_per_s = 2300", "rate = 2300", "load.schedule.rate = 2300: unknown key"),
        ('server = "labeler"', 'server = "triton"', 'sides.labeler.server = "triton"'),
        ('server = "labeler"', 'server = "labeler"\nlod = {}', "sides.labeler.lod = {}: unknown"),
        (
            'server = "labeler"',
            'server = "labeler"\nload = { payload = "text" }',
            'sides.labeler.load.payload = "text"',
        ),
        ('server = "labeler"', 'server = "labeler"\nconfig = "no.toml"', "a readable file"),
        (
            'server = "labeler"',
            'server = "labeler"\nload = { models = ["copy-1"] }',
            "labeler.load.models: no model 'copy-1'; [server] has copies = 0",
        ),
        (
            'server = "labeler"',
            'server = "labeler"\nload = { model = "a", models = ["b"] }',
            "labeler.load.models: expected no `model` beside it",
        ),
        ('server = "echo"', 'server = "echo"\nswaps = true', "echo.swaps: an echo has no models"),
        (
            'server = "echo"',
            'server = "echo"\nbulk_rows_per_s = 5',
            "echo.bulk_rows_per_s: an echo",
        ),
        ('server = "echo"', 'server = "echo"\nconfig = "x.toml"', "echo.config: an echo has no"),
        ('server = "echo"', 'server = "echo"\nburn = "inside"', "echo.burn: an echo has no"),
        (
            'server = "labeler"',
            'server = "labeler"\nstore_out = true',
            'labeler.store_out: expected [server] with store = "fast-dynamodb"',
        ),
        ('metric = "server_cpu', 'metric = "sever_cpu', "did you mean `server_cpu_us_per_label`?"),
        ('side = "labeler"', 'side = "labels"', "goals.0: no side 'labels'; there are: echo"),
        ('side = "labeler"', 'side = "echo"', "goals.0: `side` and `against` are the same"),
        ("ratio_max = 2.0", "ratio_max = 1.0", "a demand of 1 cannot be told from noise"),
        ("ratio_max = 2.0", "", "goals.0: expected one of `ratio_max` and `ratio_min`"),
        ("ratio_max = 2.0", "ratio_max = 2.0\nratio_min = 1.5", "expected one of"),
        ("errors_total == 0", "errors_total = 0", 'guards: "errors_total = 0": expected `metric'),
        ("errors_total ==", "errors_totl ==", "did you mean `errors_total`?"),
        ("labeler.client", "labels.client", "no side 'labels'"),
        ("labeler.client_latency_us_p99", "echo.backlog_rows", "'echo' is echo"),
        ("errors_total ==", "backlog_rows ==", "known of a labeler only"),
        ('about = "How', "about = How", "planted/case.toml is not TOML"),
    ],
)
def test_a_wrong_case_is_refused_by_the_name_of_what_is_wrong(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    assert before in PLAIN
    with pytest.raises(CaseError) as caught:
        written(tmp_path, PLAIN.replace(before, after, 1))
    assert problem in str(caught.value)


def test_a_settings_file_is_read_as_the_service_reads_it(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "server.toml").write_text("[writer]\nrows_mux = 5\n")
    with pytest.raises(CaseError, match=r"writer.rows_mux .* did you mean `writer.rows_max`"):
        written(tmp_path, f'{PLAIN}\n[server]\nconfig = "server.toml"\n')


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    wrong = PLAIN.replace("robots = 64", "robots = 0").replace("seed = 7", "sed = 7")
    with pytest.raises(CaseError) as caught:
        written(tmp_path, wrong)
    assert len(str(caught.value).splitlines()) == 4  # the headline, a missing seed, and the two


def test_a_case_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(CaseError, match=r"did you mean `echo-floor`[\s\S]*unary-2300-journaled"):
        read_case("echo-flor")


def test_a_side_is_sent_the_case_s_load_with_its_own_changes(tmp_path: Path) -> None:
    own = 'server = "labeler"\nload = { payload = "double" }'
    sides = written(tmp_path, PLAIN.replace('server = "labeler"', own)).sides
    assert [side.load.payload for side in sides.values()] == ["float", "double"]
    assert sides["labeler"].load.robots == 64


# --- turns and ratios


def test_sides_take_turns_so_that_a_drift_favours_neither() -> None:
    assert [order(pair, ["a", "b"]) for pair in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_a_ratio_is_the_median_of_pairs_beside_what_equal_sides_show(case: Case) -> None:
    [found] = judged(case, pairs_of(QUIET, [cpu * 1.5 for cpu in QUIET])).judged
    assert found.ratio
    assert found.aa
    assert found.ratio.median == pytest.approx(1.5)
    assert (found.aa.min, found.aa.max) == pytest.approx((39 / 40, 41 / 40), abs=0.003)
    assert found.verdict == "reached"


def test_a_drift_of_the_machine_cancels_in_the_pairs(case: Case) -> None:
    drifting = [40 * 1.05**n for n in range(8)]
    [found] = judged(case, pairs_of(drifting, [cpu * 1.5 for cpu in drifting])).judged
    assert found.ratio
    assert (found.ratio.min, found.ratio.max) == pytest.approx((1.5, 1.5))


def test_a_planted_slow_side_is_told_apart(case: Case) -> None:
    report = judged(case, pairs_of(QUIET, [cpu * 2.2 for cpu in QUIET]))
    assert report.judged[0].verdict == "missed"
    assert report.failures() == [f"goal {CPU} of labeler against echo"]


def test_a_median_that_not_every_pair_agrees_with_is_said_to_be_so(case: Case) -> None:
    labeler = [cpu * factor for cpu, factor in zip(QUIET, [1.9] * 6 + [2.1] * 2, strict=True)]
    assert judged(case, pairs_of(QUIET, labeler)).judged[0].verdict == "reached, not in every pair"


def test_a_machine_that_tells_equal_sides_apart_by_the_demand_measures_nothing(case: Case) -> None:
    noisy = [40, 90, 40, 41, 40, 40, 41, 40]
    report = judged(case, pairs_of(noisy, [cpu * 2.2 for cpu in noisy]))
    assert report.judged[0].verdict.startswith("not measurable here: A/A spreads wider")
    assert report.failures() == []


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(5.0, "missed"), (0.5, "reached"), (4.4, "not measurable here")]
)
def test_what_every_pair_shows_beyond_the_noise_is_told_on_a_noisy_machine_too(
    case: Case, ratio: float, verdict: str
) -> None:
    noisy = [40, 90, 40, 41, 40, 40, 41, 40]  # equal sides differ by 2.25
    [found] = judged(case, pairs_of(noisy, [cpu * ratio for cpu in noisy])).judged
    assert found.verdict.startswith(verdict)


@pytest.mark.parametrize(("aa", "word"), [(1.04, "reached"), (1.12, "not measurable here")])
def test_a_narrow_demand_needs_a_quieter_machine(tmp_path: Path, aa: float, word: str) -> None:
    case = written(tmp_path, PLAIN.replace("ratio_max = 2.0", "ratio_max = 1.1"))
    swaying = [40 * aa ** (n % 2) for n in range(8)]
    [found] = judged(case, pairs_of(swaying, [cpu * 1.02 for cpu in swaying])).judged
    assert found.verdict.startswith(word)


@pytest.mark.parametrize(("ratio", "word"), [(0.9, "reached"), (0.7, "missed")])
def test_a_demand_may_be_a_least_ratio(tmp_path: Path, ratio: float, word: str) -> None:
    case = written(tmp_path, PLAIN.replace("ratio_max = 2.0", "ratio_min = 0.8"))
    [found] = judged(case, pairs_of(QUIET, [cpu * ratio for cpu in QUIET])).judged
    assert found.verdict == word


def test_a_figure_of_nothing_has_no_ratio(case: Case) -> None:
    [found] = judged(case, pairs_of([0, *QUIET[1:]], QUIET)).judged
    assert found.ratio is None
    assert found.verdict == f"not measurable here: {CPU} was 0"


@pytest.mark.parametrize(("asked", "seconds"), [(2, 5.0), (8, 2.0)])
def test_a_quick_look_is_no_measurement(case: Case, asked: int, seconds: float) -> None:
    slow = pairs_of(QUIET[:asked], [cpu * 9 for cpu in QUIET[:asked]])
    report = judged(case, slow, asked, seconds)
    assert not report.measurement
    assert report.judged[0].verdict == "quick look, not a measurement"


def test_a_quick_look_fails_nothing_and_shows_what_is_broken(case: Case) -> None:
    report = judged(case, [Pair({"echo": run(40), "labeler": run(40, errors=1)})], asked=1)
    assert [c.holds for c in report.guards if c.side == "labeler"] == [False, True]
    assert report.failures() == []


def test_an_erratic_case_is_judged_and_fails_nothing(tmp_path: Path) -> None:
    case = written(tmp_path, PLAIN.replace("seed = 7", "seed = 7\nerratic = true"))
    report = judged(case, pairs_of(QUIET, [cpu * 2.2 for cpu in QUIET]))
    assert report.judged[0].verdict == "missed"
    assert report.failures() == []


def test_without_a_demand_the_ratio_stands_and_no_verdict(tmp_path: Path) -> None:
    case = written(tmp_path, PLAIN[: PLAIN.index("[[goals]]")])
    [found] = judged(case, pairs_of(QUIET, [cpu * 3 for cpu in QUIET])).judged
    assert (found.side, found.against, found.verdict) == ("labeler", "echo", "")
    assert found.ratio


# --- runs that the sender does not vouch for


def test_a_pair_with_an_invalid_run_is_left_out_whole_and_named(case: Case) -> None:
    late = Pair({"echo": run(40), "labeler": run(800, invalid=["schedule lag p99 9 ms"])})
    report = judged(case, [*pairs_of(QUIET, QUIET), late])
    assert report.pairs == 8
    assert report.sides["labeler"][CPU] == 40
    assert report.left_out == ["labeler: schedule lag p99 9 ms"]
    assert "left out: labeler: schedule lag" in progress_line(9, late)


def test_too_few_valid_pairs_are_no_measurement(case: Case) -> None:
    late = Pair({"echo": run(40, invalid=["late"]), "labeler": run(40)})
    [found] = judged(case, [*pairs_of(QUIET[1:], QUIET[1:]), *[late] * 9]).judged
    assert found.verdict == "not measurable here: too few valid pairs"


def test_an_error_in_a_run_left_out_is_an_error(case: Case) -> None:
    late = Pair({"echo": run(40), "labeler": run(40, errors=3, invalid=["late"])})
    report = judged(case, [*pairs_of(QUIET, QUIET), late])
    assert report.failures() == ["guard errors_total == 0 (labeler)"]


# --- guards


def test_a_guard_without_a_side_holds_for_every_side(case: Case) -> None:
    guards = judged(case, pairs_of(QUIET, QUIET)).guards
    assert [(c.guard.metric, c.side, c.holds) for c in guards] == [
        ("errors_total", "echo", True),
        ("errors_total", "labeler", True),
        ("client_latency_us_p99", "labeler", True),
    ]


def test_a_broken_guard_is_a_failure_with_its_side(case: Case) -> None:
    slow = [Pair({"echo": run(40), "labeler": run(40, p99=10_001)})] * 8
    assert judged(case, slow).failures() == [
        "guard labeler.client_latency_us_p99 <= 10000 (labeler)"
    ]


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        (f"{CPU} <= 40", True),
        (f"{CPU} < 40", False),
        (f"{CPU} >= 40", True),
        (f"{CPU} > 40", False),
        (f"{CPU} == 40", True),
        (f"{CPU} == 41", False),
        (f"{CPU} <= 39.5", False),
    ],
)
def test_every_sign_of_a_guard_means_what_it_says(tmp_path: Path, guard: str, holds: bool) -> None:
    case = written(tmp_path, PLAIN.replace("errors_total == 0", f"echo.{guard}"))
    assert judged(case, pairs_of([40] * 8, [40] * 8)).guards[0].holds is holds


def test_a_guard_whose_figure_was_not_seen_does_not_hold(tmp_path: Path) -> None:
    case = written(tmp_path, PLAIN.replace("errors_total == 0", "server_rss_bytes_max <= 1"))
    assert not judged(case, pairs_of(QUIET, QUIET)).guards[0].holds


def test_without_a_valid_run_a_latency_is_not_measured_and_an_error_is_still_one(
    case: Case,
) -> None:
    late = Pair({"echo": run(40), "labeler": run(40, errors=2, invalid=["late"])})
    guards = judged(case, [late] * 16).guards
    assert [c.holds for c in guards] == [True, False, None]


# --- figures


RESULT = {
    "answered": 1000,
    "acknowledged_total": 1250,
    "errors": {"UNAVAILABLE": 2, "TIMEOUT": 1},
    "elapsed_s": 0.5,
    "latency_us": {"mean": 1.5, "p50": 1, "p95": 2, "p99": 2, "p999": 3},
    "latency_uncorrected_us": {"p99": 1},
    "server_us": {"p50": 1, "p99": 2},
    "schedule_lag_us": {"p99": 7},
    "sender_cpu_share": 0.4,
    "server": {"cpu_user_us": 30_000, "cpu_system_us": 10_000, "rss_bytes_max": 50_000_000},
}


def test_work_after_the_last_reply_is_counted_to_all_labels_that_caused_it() -> None:
    figures = figures_of(RESULT, {"server_cpu_after_us": 5000.0, "path_cpu_share": 0.5})
    assert figures["server_cpu_after_us_per_label"] == 4
    assert figures[CPU] == 44
    assert figures["path_cpu_us_per_label"] == 20


def test_every_figure_of_a_run_is_a_metric_that_a_case_may_name() -> None:
    seen = {f"stage_{stage}_us_p50": 1.0 for stage in STAGES}
    figures = figures_of(RESULT, seen)
    assert set(figures) <= set(METRICS)
    assert (figures["errors_total"], figures["labels_per_s"]) == (3, 2000)


def test_runs_become_a_figure_in_the_way_of_their_metric() -> None:
    runs = [{CPU: cpu, "errors_total": 1.0, "server_rss_bytes_max": cpu} for cpu in (1.0, 2.0, 9.0)]
    assert over_runs(runs) == {"errors_total": 3.0, CPU: 2.0, "server_rss_bytes_max": 9.0}


# --- what is written down


def test_the_lines_say_what_was_found_beside_the_floor_of_the_same_run(case: Case) -> None:
    whole = dict.fromkeys(METRICS, 5.0)
    pairs = [
        Pair({"echo": Run(whole | {CPU: 40.0}), "labeler": Run(whole | {CPU: 90.0})})
        for _ in range(8)
    ]
    report = judged(case, pairs)
    measured = Measured(pairs, report.sides["echo"], 900.0)
    text = "\n".join(lines(case, report, measured, 5.0))
    assert "labeler/echo 2.25 [2.25..2.25]   echo/echo 1.00 [1.00..1.00]" in text
    assert "demanded <= 2: missed" in text
    assert "guard errors_total == 0: BROKEN, echo has 40" in text
    assert "floor of this run: bare echo 40.0 µs/label, p99 0.01 ms; fdatasync p99 0.90 ms" in text
    assert "quick look" not in text


@pytest.mark.parametrize(("p99_us", "said"), [(1_600_000.0, True), (900_000.0, False)])
def test_a_side_that_falls_behind_its_schedule_is_named_under_the_table(
    case: Case, p99_us: float, said: bool
) -> None:
    whole = dict.fromkeys(METRICS, 5.0)
    late = whole | {"client_latency_us_p99": p99_us}
    pairs = [Pair({"echo": Run(whole), "labeler": Run(late)})] * 8
    text = "\n".join(lines(case, judged(case, pairs), Measured(pairs, whole, 900.0), 5.0))
    assert ("labeler fell behind: p99 1.6 s; its labels/s are the schedule's" in text) is said
    assert "echo fell behind" not in text


def test_a_closed_loop_has_no_schedule_to_fall_behind() -> None:
    assert not behind("labeler", "saturate", {"client_latency_us_p99": 2e6})


def test_without_a_valid_run_what_was_seen_is_shown_as_not_valid(case: Case) -> None:
    figures = dict.fromkeys(METRICS, 5.0)
    late = [Pair({side: Run(figures, ("late",)) for side in case.sides})] * 16
    shown = list(lines(case, judged(case, late), Measured(late, figures, 900.0), 5.0))
    assert [line.endswith("NOT VALID") for line in shown[3:5]] == [True, True]
    assert shown[-1] == "  left out: 32 runs, such as echo: late"


def test_every_figure_of_the_result_file_can_be_traced_to_its_runs(case: Case) -> None:
    pairs = pairs_of(QUIET, [cpu * 1.5 for cpu in QUIET])
    report = judged(case, pairs)
    found = document(case, report, Measured(pairs, report.sides["echo"], 900.0), 5.0)
    ratios = [pair["labeler"][CPU] / pair["echo"][CPU] for pair in found["runs"]]
    assert statistics.median(ratios) == pytest.approx(found["compared"][0]["ratio"]["median"])
    assert found["sides"]["echo"][CPU] == statistics.median(p["echo"][CPU] for p in found["runs"])
    assert json.loads(json.dumps(found)) == found


# --- a real run


@pytest.mark.slow  # builds the echo and the sender, minutes from nothing; then it takes seconds
@pytest.mark.timeout(1200)
def test_a_case_runs_from_end_to_end_and_its_quick_look_says_what_it_is(tmp_path: Path) -> None:
    crates = ["-p", "labeler-echo", "-p", "labeler-bench-loadgen"]
    subprocess.run(["cargo", "build", "--locked", "--release", *crates], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "bench.run", "unary-2300-journaled", "--pairs", "1"]
    done = subprocess.run(
        [*command, "--seconds", "1", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "quick look, not a measurement" in done.stdout
    assert "floor of this run: bare echo" in done.stdout
    found = json.loads((tmp_path / "unary-2300-journaled.json").read_text())
    for figures in (pair[side] for pair in found["runs"] for side in ("echo", "labeler")):
        assert 0 < figures["labels_total"] <= 2300
        assert figures["errors_total"] == 0
        assert figures["server_cpu_us_per_label"] > 0
    assert found["runs"][0]["labeler"]["stage_total_us_p50"] > 0

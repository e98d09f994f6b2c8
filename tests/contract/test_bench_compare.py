"""The comparison of two commits: its pairs tell a change from noise, or that it cannot be told."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.compare import CASES, main, more_errors, sides_of
from bench.gate.intervals import LIMITS, changed, interval, line, metrics_of
from bench.suite.case import CaseError, read_case
from bench.suite.compare import PAIRS_MIN, Pair, Run

CPU = "server_cpu_us_per_label"


def pairs(
    of: Callable[[random.Random], tuple[float, float]], count: int = PAIRS_MIN, metric: str = CPU
) -> list[Pair]:
    """Pairs of a base and a head with these figures."""
    chance = random.Random(7)

    def pair() -> Pair:
        base, head = of(chance)
        return Pair({"base": Run({metric: base}), "head": Run({metric: head})})

    return [pair() for _ in range(count)]


def noisy(chance: random.Random, share: float) -> float:
    return 100 * chance.uniform(1 - share, 1 + share)


def test_an_interval_holds_its_median_and_narrows_with_more_pairs() -> None:
    few, many = (
        interval([p.runs["head"].figures[CPU] for p in pairs(lambda c: (1, noisy(c, 0.1)), count)])
        for count in (8, 80)
    )
    assert few
    assert many
    assert few.low <= few.median <= few.high
    assert many.high - many.low < few.high - few.low


def test_a_slower_head_is_a_regression() -> None:
    found = changed(CPU, pairs(lambda c: (noisy(c, 0.01), 1.1 * noisy(c, 0.01))))
    assert found.verdict.startswith("REGRESSION")
    assert "head/base 1." in line(found)


@pytest.mark.parametrize(("share", "word"), [(0.9, "REGRESSION"), (1.1, "no regression")])
def test_fewer_labels_a_second_are_a_regression_and_more_are_none(share: float, word: str) -> None:
    made = pairs(lambda c: (noisy(c, 0.01), share * noisy(c, 0.01)), metric="labels_per_s")
    found = changed("labels_per_s", made)
    assert found.verdict.startswith(word)
    assert line(found).startswith(f"labels_per_s base/head {1 / share:.1f}")


def test_a_closed_loop_is_asked_for_throughput_and_an_open_one_for_latency() -> None:
    closed, opened = metrics_of(closed=True), metrics_of(closed=False)
    assert closed == (CPU, "labels_per_s")
    assert opened == (CPU, "client_latency_us_p99")
    assert {*closed, *opened} == {*LIMITS}


def test_an_equal_head_is_none() -> None:
    found = changed(CPU, pairs(lambda c: (noisy(c, 0.01), noisy(c, 0.01))))
    assert found.verdict.startswith("no regression")


def test_a_drift_of_the_machine_is_none() -> None:
    hours = iter(range(1000))

    def drifting(chance: random.Random) -> tuple[float, float]:
        slower = 1 + next(hours) / 100
        return slower * noisy(chance, 0.005), slower * noisy(chance, 0.005)

    assert changed(CPU, pairs(drifting)).verdict.startswith("no regression")


def test_a_machine_that_tells_equal_runs_apart_measures_nothing() -> None:
    found = changed(CPU, pairs(lambda c: (noisy(c, 0.4), 1.1 * noisy(c, 0.4))))
    assert found.verdict.startswith("not measurable here: A/A")


def test_a_change_far_beyond_the_noise_is_told_on_a_noisy_machine_too() -> None:
    found = changed(CPU, pairs(lambda c: (noisy(c, 0.4), 5 * noisy(c, 0.4))))
    assert found.aa
    assert found.aa.high > found.limit
    assert found.verdict.startswith("REGRESSION")


def test_too_few_valid_pairs_measure_nothing() -> None:
    few = pairs(lambda c: (100, 200), 7)
    invalid = Pair({"base": Run({CPU: 100}, ("late",)), "head": Run({CPU: 200})})
    assert "too few" in changed(CPU, [*few, invalid]).verdict


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_run_on_both_trees_with_the_labeler_s_own_load(name: str) -> None:
    case = read_case(name)
    found = sides_of(case, {"base": Path("/base"), "head": Path("/head")})
    assert list(found.sides) == ["base", "head"]
    assert {side.tree for side in found.sides.values()} == {Path("/base"), Path("/head")}
    loads = {side.load.model_dump_json() for side in found.sides.values()}
    assert loads == {case.sides["labeler"].load.model_dump_json()}


@pytest.mark.parametrize(("base", "head", "told"), [(0, 3, True), (3, 0, False), (2, 2, False)])
def test_a_head_that_answers_more_calls_with_errors_is_a_regression(
    base: float, head: float, told: bool
) -> None:
    whole = {"errors_total": 0.0}
    pair = Pair({"base": Run(whole), "head": Run(whole)})
    # The sender was late: what it measured is left out, an error is not.
    late = Pair(
        {"base": Run({"errors_total": base}, ("late",)), "head": Run({"errors_total": head})}
    )
    expected = f"errors_total: base {base}, head {head}" if told else ""
    assert more_errors([pair, late]) == expected


def test_a_case_without_our_service_is_refused() -> None:
    with pytest.raises(CaseError, match="no side whose server is labeler"):
        sides_of(read_case("echo-floor"), {"base": Path("/base")})


def test_a_commit_that_does_not_exist_is_said_to_be_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["nowhere", "HEAD"]) == 2
    assert "nowhere is no commit" in capsys.readouterr().err

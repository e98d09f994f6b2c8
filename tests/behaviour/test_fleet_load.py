"""What a run of the fleet sends, and what it says of what came back; without a service."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from labeler.client import ModelVersion
from labeler.errors import InvalidRequestError, LabelerError, ModelNotFoundError
from labeler.fleet.accounts import OUTCOMES
from labeler.fleet.audit import Audit
from labeler.fleet.load import Load, Model, choose_model, make_plan, make_schedule
from labeler.fleet.report import FleetReport
from labeler.fleet.rows import Batch, Crew, Feeder, FloorRows
from labeler.fleet.server import ServerFigures, ServerReading, figures


class Few:
    """Rows of two values, in two batches of three."""

    about = "the rows"
    width = 2
    labels: Sequence[str] = ("go", "stop")
    skus: Sequence[str] = ()

    def __init__(self, fault: Exception | None = None) -> None:
        self._left, self._fault = 2, fault

    def take(self) -> Batch | None:
        if self._fault:
            raise self._fault
        self._left -= 1
        if self._left < 0:
            return None
        values = np.array([[self._left, 2], [3, 4], [5, 6]], np.float32)
        return Batch(values, np.array([0, 1, -1], np.int16), np.array([], np.int16))


class Kept:
    """What a sender would be given."""

    def __init__(self) -> None:
        self.values, self.truths, self.ended = b"", b"", threading.Event()

    def feed(self, values: bytes, truths: bytes, skus: bytes) -> None:
        self.values, self.truths = self.values + values, self.truths + truths

    def end_feed(self) -> None:
        self.ended.set()


def model(name: str, width: int = 2, labels: tuple[str, ...] = ("go", "stop")) -> ModelVersion:
    return ModelVersion(name, "1", "READY", True, width, labels, "fp32", "", "")


LOAD = Load(robots=2300, schedule={"shape": "constant", "rate_per_s": 2300}, duration_s=30)


def test_rows_go_to_the_sender_in_their_order_as_little_endian_bytes() -> None:
    sink = Kept()
    feeder = Feeder(Few(), sink, rows_ahead=3)
    feeder.start()
    assert sink.ended.wait(10)
    feeder.stop()
    assert np.frombuffer(sink.values, "<f4").tolist() == [1, 2, 3, 4, 5, 6, 0, 2, 3, 4, 5, 6]
    assert np.frombuffer(sink.truths, "<i2").tolist() == [0, 1, -1, 0, 1, -1]
    assert (feeder.fed, feeder.primed.is_set(), feeder.error) == (6, True, None)


def test_a_fault_of_the_rows_is_kept_for_whoever_waits() -> None:
    fault = InvalidRequestError("the floor is gone")
    feeder = Feeder(Few(fault), Kept(), rows_ahead=3)
    feeder.start()
    assert feeder.primed.wait(10)
    feeder.stop()
    assert feeder.error is fault


def test_the_only_model_is_the_one_that_answers() -> None:
    chosen = choose_model([model("a"), replace(model("b"), serving=False)], "", Few())
    assert (chosen.name, chosen.named, chosen.note) == ("a", False, "")


def test_of_several_models_the_one_that_knows_the_truths_is_named() -> None:
    models = [model("a", labels=("x", "y")), model("b"), model("c", width=3)]
    chosen = choose_model(models, "", Few())
    assert (chosen.name, chosen.named) == ("b", True)
    assert make_plan(LOAD, "h:1", chosen, Few())["model"] == "b"


@pytest.mark.parametrize(
    ("models", "wanted", "kind", "words"),
    [
        ([model("a", 24)], "", InvalidRequestError, r"gives 2 values, no .* a 1 \(24 values\)"),
        ([model("a", 24)], "a", InvalidRequestError, "gives 2 values, model a takes others"),
        ([model("a")], "b", ModelNotFoundError, "'b' is not served, expected one of: a 1"),
        ([], "", ModelNotFoundError, "no model is served, expected one of: none"),
        ([model("a"), model("b")], "", ModelNotFoundError, "several models .* with --model"),
    ],
)
def test_a_model_that_does_not_fit_is_told_with_what_would(
    models: list[ModelVersion], wanted: str, kind: type[LabelerError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        choose_model(models, wanted, Few())


def test_truths_that_the_model_cannot_say_are_not_judged() -> None:
    chosen = choose_model([model("a", labels=("x", "y"))], "", Few())
    assert "knows none of the labels of the rows" in chosen.note
    assert make_plan(LOAD, "h:1", chosen, Few())["labels"] == []


@pytest.mark.parametrize(
    ("robots", "asked", "used"), [(2300, 0, 16), (2300, 2300, 2300), (3, 0, 3), (30_000, 0, 200)]
)
def test_connections_are_a_few_unless_more_streams_need_more(
    robots: int, asked: int, used: int
) -> None:
    assert replace(LOAD, robots=robots, connections=asked).connections_used() == used


def test_shapes_have_sensible_parts_where_none_are_said() -> None:
    assert make_schedule("poisson", 10, 30, {}) == {"shape": "poisson", "rate_per_s": 10}
    assert make_schedule("ramp", 10, 30, {"to_rate": 50})["to_rate_per_s"] == 50
    assert make_schedule("step", 10, 30, {}) == {
        "shape": "step",
        "rate_per_s": 10,
        "to_rate_per_s": 20,
        "at_s": 15,
    }
    assert make_schedule("flash-crowd", 10, 30, {"at": 29}) == {
        "shape": "flash_crowd",
        "rate_per_s": 10,
        "factor": 10,
        "at_s": 29,
        "lasts_s": 1,
    }


def test_a_part_that_a_shape_does_not_have_is_refused_with_those_that_have_it() -> None:
    with pytest.raises(InvalidRequestError, match="--at with --schedule ramp, expected step or"):
        make_schedule("ramp", 10, 30, {"at": 3})


def test_rows_of_a_tick_stand_in_the_order_in_which_they_are_due() -> None:
    rows = FloorRows(Crew(robots=10, rate_per_s=2.0, floor_seed=7, seed=1))
    assert rows.arrivals_us(1.0) == [k * 50_000 for k in range(20)]
    batch = rows.take()
    assert (batch.values.shape, len(batch.truths), len(batch.skus)) == ((10, 24), 10, 10)


def test_robots_that_ask_seldom_still_move_in_short_steps() -> None:
    rows = FloorRows(Crew(robots=10, rate_per_s=0.1, floor_seed=7, seed=1))
    assert len(rows.take().values) == 10
    assert rows.fleet.work.ticks == 5
    assert rows.arrivals_us(20.0) == [k * 1_000_000 for k in range(20)]


def reading(answered: int, stored: int, started_unix_us: int = 1) -> ServerReading:
    journal = {"journaled_total": stored, "stored_total": stored, "pending": 0}
    counts = dict.fromkeys(("received", *OUTCOMES), 0)
    streams = counts | {"received": answered, "answered": answered}
    process = {"pid": 7, "cpu_user_us": 100 * answered, "cpu_system_us": 50 * answered}
    status: dict[str, Any] = {
        "instance_id": "i",
        "started_unix_us": started_unix_us,
        "labels_total": answered,
        "methods": {"Label": counts, "LabelBatch": counts, "LabelStream": streams},
        "journal": journal | {"superseded_total": 0, "dead_total": 0},
        "process": process | {"resident_bytes": 5, "resident_bytes_max": 6},
    }
    stage = {"stage": "total", "model": "m", "version": "1", "counts": [[80, answered]]}
    return ServerReading(status, [stage])


def test_counts_span_the_run_while_costs_and_stages_leave_out_the_warm_up() -> None:
    found = figures(reading(10, 10), reading(30, 25), reading(90, 90))
    assert (found.answered, found.stored, found.measured) == (80, 80, 60)
    assert (found.cpu_us_per_label, found.stages[0]["count"]) == (150.0, 60)
    nothing = dict.fromkeys(OUTCOMES, 0)
    assert found.requests == {"LabelStream": nothing | {"received": 80, "answered": 80}}
    assert not found.restarted


def test_after_a_restart_counters_are_those_since_and_costs_are_unknown() -> None:
    found = figures(reading(10, 10), reading(30, 25), reading(4, 3, started_unix_us=2))
    assert (found.restarted, found.answered, found.stored) == (True, 4, 3)
    assert (found.cpu_us_per_label, found.stages[0]["count"]) == (None, 4)


def report(server: ServerFigures | None, found: Audit | None = None) -> FleetReport:
    figures_us = dict.fromkeys(("count", "p50", "p99", "p999", "max", "mean"), 1500)
    result: dict[str, Any] = {
        "planned": 106,
        "sent": 103,
        "answered": 100,
        "unsent": 1,
        "errors": {"UNAVAILABLE": 4, "UNFED": 1},
        "acknowledged_total": 120,
        "sent_total": 130,
        "unheard_total": 3,
        "sources": {"MODEL": 95, "REPLAY": 5},
        "elapsed_s": 2.0,
        **dict.fromkeys(("latency_us", "latency_uncorrected_us", "server_us"), figures_us),
        "schedule_lag_us": figures_us,
        **dict.fromkeys(("accuracy", "sender_cpu_share", "sender_cpu_us_per_label")),
        **dict.fromkeys(("rate_planned_per_s", "rate_reached_per_s", "judged"), 0),
        "durabilities": {},
        "by_label": {},
        "valid": False,
        "invalid_because": ["it is made up"],
    }
    return FleetReport(LOAD, Model("m", "1", 2, ("go",), False), result, server, found, [])


def since_nothing(after: ServerReading) -> ServerFigures:
    nothing = reading(0, 0)
    return figures(nothing, nothing, after)


def test_every_planned_label_has_one_place_in_the_accounting() -> None:
    found = report(None)
    shown = found.to_json()
    assert (found.unlinked, shown["errors"], shown["unfed"], shown["unsent"]) == (1, 4, 1, 1)
    assert shown["planned"] == shown["labels"] + shown["errors"] + shown["unfed"] + shown["unsent"]
    assert (shown["labels_per_s"], shown["valid"]) == (50.0, False)


def test_what_is_stored_of_the_measured_part_is_all_less_the_warm_up() -> None:
    assert report(since_nothing(reading(120, 120))).stored == 100
    assert report(None).stored is None


@pytest.mark.parametrize(("journaled", "lost"), [(115, 0), (200, 0), (112, 3)])
def test_acknowledged_labels_that_no_journal_took_are_lost(journaled: int, lost: int) -> None:
    assert report(since_nothing(reading(120, journaled))).lost == lost


def test_an_audit_has_the_last_word_on_what_is_lost() -> None:
    server = since_nothing(reading(120, 0))
    assert report(server, Audit(acknowledged=5, found=4, changed=1, missing=1)).lost == 2

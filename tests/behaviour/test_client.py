"""What a robot's programmer sees: both clients against the real service.

The packaged model `kiva-floor` takes 24 values and has five labels.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import labeler
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.support.service import Service

MODEL = "kiva-floor"
LABELS = {"move-forward", "slow-down", "stop", "turn-left", "turn-right"}
WIDTH = 24
FAR = np.full(WIDTH, 2.5, np.float32)
NEAR = np.full(WIDTH, 0.3, np.float32)


@pytest.fixture
def robot_id(request: pytest.FixtureRequest) -> str:
    """A robot of the test's own, so that tests share the service and no key."""
    return str(request.node.name)[:128]


def test_a_label_says_what_it_is_where_it_comes_from_and_what_is_true_of_it(
    client: labeler.Client, robot_id: str
) -> None:
    label = client.label(robot_id, 1, FAR, model=MODEL)

    assert label.label in LABELS
    assert 0.0 < label.confidence <= 1.0
    assert (label.sequence, label.model, label.source) == (1, MODEL, "MODEL")
    assert label.durability in ("JOURNALED", "STORED")
    assert label.version
    assert label.scores is None


def test_the_times_of_a_label_add_up(client: labeler.Client, robot_id: str) -> None:
    label = client.label(robot_id, 1, FAR, model=MODEL)

    assert 0 < label.timing.total_us <= label.round_trip_us
    assert label.network_us == label.round_trip_us - label.timing.total_us


def test_scores_come_on_request_one_for_each_label(client: labeler.Client, robot_id: str) -> None:
    label = client.label(robot_id, 1, FAR, model=MODEL, want_scores=True)

    assert label.scores is not None
    assert (label.scores.dtype.name, label.scores.shape) == ("float32", (len(LABELS),))
    assert int(np.argmax(label.scores)) == label.index


@pytest.mark.parametrize(
    "values", [FAR, FAR.astype(np.float64), FAR.tolist()], ids=["32", "64", "list"]
)
def test_every_form_of_the_same_values_gets_the_same_label(
    client: labeler.Client, robot_id: str, values: Any
) -> None:
    first = client.label(f"{robot_id[:100]}-first", 1, FAR, model=MODEL)

    label = client.label(robot_id, 1, values, model=MODEL)

    assert (label.label, label.index) == (first.label, first.index)


def test_a_retry_after_a_lost_reply_returns_the_first_label(
    client: labeler.Client, robot_id: str
) -> None:
    first = client.label(robot_id, 1, FAR, model=MODEL)

    again = client.label(robot_id, 1, FAR, model=MODEL)

    assert (again.label, again.index, again.version) == (first.label, first.index, first.version)
    assert again.source == "REPLAY"


def test_a_sequence_used_for_other_values_is_refused(client: labeler.Client, robot_id: str) -> None:
    client.label(robot_id, 1, FAR, model=MODEL)

    with pytest.raises(labeler.KeyReusedError) as refused:
        client.label(robot_id, 1, NEAR, model=MODEL)

    assert refused.value.sequence == 1


def test_values_of_another_type_are_refused_before_they_are_sent(
    client: labeler.Client, robot_id: str
) -> None:
    with pytest.raises(labeler.InvalidRequestError, match="int32") as refused:
        client.label(robot_id, 1, FAR.astype(np.int32), model=MODEL)

    assert refused.value.field == "values"


def test_values_of_another_width_are_refused_by_the_service_with_what_it_expects(
    client: labeler.Client, robot_id: str
) -> None:
    with pytest.raises(labeler.InvalidRequestError) as refused:
        client.label(robot_id, 1, FAR[:7], model=MODEL)

    assert refused.value.field
    assert str(WIDTH) in refused.value.expected


def test_a_value_that_is_no_number_is_refused(client: labeler.Client, robot_id: str) -> None:
    values = FAR.copy()
    values[3] = np.nan

    with pytest.raises(labeler.InvalidRequestError):
        client.label(robot_id, 1, values, model=MODEL)


def test_an_unknown_model_is_refused_with_those_that_are_loaded(
    client: labeler.Client, robot_id: str
) -> None:
    with pytest.raises(labeler.ModelNotFoundError, match=MODEL):
        client.label(robot_id, 1, FAR, model="no-such-model")


def test_a_bad_row_of_a_batch_fails_alone(client: labeler.Client, robot_id: str) -> None:
    rows: list[Any] = [FAR, FAR[:7], FAR.astype(np.int64), NEAR]
    queries = [
        labeler.LabelQuery(robot_id, row + 1, values, model=MODEL)
        for row, values in enumerate(rows)
    ]

    results = client.label_batch(queries)

    kinds = [type(result) for result in results]
    refused = labeler.InvalidRequestError
    assert kinds == [labeler.Label, refused, refused, labeler.Label]
    assert [result.sequence for result in results] == [1, 2, 3, 4]


def test_the_rows_of_an_array_are_labelled_in_their_order(
    client: labeler.Client, robot_id: str
) -> None:
    alone = [client.label(f"{robot_id[:100]}-alone", 1, FAR, model=MODEL).label]
    alone += [client.label(f"{robot_id[:100]}-alone", 2, NEAR, model=MODEL).label]

    results = client.label_rows(robot_id, 1, np.stack([FAR, NEAR]), model=MODEL)

    assert [result.label for result in results if isinstance(result, labeler.Label)] == alone


def test_a_stream_gives_each_request_its_own_result(client: labeler.Client, robot_id: str) -> None:
    with client.stream() as stream:
        for sequence in range(1, 21):
            stream.send(robot_id, sequence, FAR, model=MODEL, timeout_ms=5_000)
        stream.send(robot_id, 21, FAR[:7], model=MODEL, timeout_ms=5_000)
        results = {result.sequence or 0: result for result in stream}

    assert sorted(results) == list(range(1, 22))
    assert isinstance(results.pop(21), labeler.InvalidRequestError)
    assert all(isinstance(result, labeler.Label) for result in results.values())


def test_a_stream_goes_on_after_its_results_were_read(
    client: labeler.Client, robot_id: str
) -> None:
    with client.stream() as stream:
        for sequence in (1, 2, 3):
            stream.send(robot_id, sequence, FAR, model=MODEL, timeout_ms=5_000)

            assert [result.sequence for result in stream] == [sequence]


def test_an_abandoned_stream_leaves_the_client_usable(
    client: labeler.Client, robot_id: str
) -> None:
    with client.stream() as stream:
        for sequence in range(1, 21):
            stream.send(robot_id, sequence, FAR, model=MODEL, timeout_ms=5_000)
        next(stream)

    assert client.label(robot_id, 100, FAR, model=MODEL).sequence == 100


def test_a_label_can_be_read_back_and_reaches_the_store(
    client: labeler.Client, robot_id: str
) -> None:
    label = client.label(
        robot_id, 7, FAR, model=MODEL, sku="box-12", captured_at_unix_us=1_700_000_000_000_000
    )

    pending = client.get(robot_id, 7)
    stored = eventually(
        lambda: [kept for kept in client.list(robot_id) if kept.durability == "STORED"]
    )

    assert (pending.label, pending.sequence) == (label.label, 7)
    assert [(kept.label, kept.sequence, kept.sku) for kept in stored] == [
        (label.label, 7, "box-12")
    ]
    assert stored[0].captured_at_unix_us == 1_700_000_000_000_000
    assert stored[0].robot_id == robot_id


def test_a_listing_reads_page_after_page_by_descending_sequence(
    client: labeler.Client, robot_id: str
) -> None:
    client.label_rows(robot_id, 1, np.tile(FAR, (7, 1)), model=MODEL)
    eventually(lambda: len(list(client.list(robot_id))) == 7)

    listed = [kept.sequence for kept in client.list(robot_id, page_size=3)]

    assert listed == [7, 6, 5, 4, 3, 2, 1]


def test_a_label_that_was_never_made_is_not_found(client: labeler.Client, robot_id: str) -> None:
    with pytest.raises(labeler.LabelNotFoundError) as missing:
        client.get(robot_id, 1)

    assert missing.value.sequence == 1


def test_the_models_say_what_they_take_and_answer(client: labeler.Client) -> None:
    serving = {model.name: model for model in client.models() if model.serving}

    assert serving[MODEL].width == WIDTH
    assert set(serving[MODEL].labels) == LABELS
    assert serving[MODEL].state == "READY"


def test_a_model_that_is_in_no_repository_is_not_found(client: labeler.Client) -> None:
    with pytest.raises(labeler.ModelNotFoundError):
        client.load_model("no-such-model")


@pytest.mark.parametrize(
    ("service_name", "state"),
    [("", "SERVING"), ("labeler.live", "SERVING"), ("no.such.Service", "SERVICE_UNKNOWN")],
)
def test_health_is_a_word(client: labeler.Client, service_name: str, state: str) -> None:
    assert client.health(service_name) == state


def test_the_asyncio_client_does_what_the_blocking_one_does(
    service: "Service", robot_id: str
) -> None:
    async def use() -> None:
        async with labeler.AsyncClient(service.address, model=MODEL, timeout_ms=5_000) as client:
            await client.wait_ready()
            label = await client.label(robot_id, 1, FAR)
            again = await client.label(robot_id, 1, FAR)
            rows = await client.label_rows(robot_id, 2, np.stack([FAR, NEAR]))
            kept = await client.get(robot_id, 1)
            models = await client.models()

            assert label.label == again.label == kept.label
            assert again.source == "REPLAY"
            assert [row.sequence for row in rows] == [2, 3]
            assert MODEL in {model.name for model in models}
            assert await client.health() == "SERVING"
            with pytest.raises(labeler.KeyReusedError):
                await client.label(robot_id, 1, NEAR)
            with pytest.raises(labeler.InvalidRequestError):
                await client.label(robot_id, 9, FAR.astype(np.int32))

    asyncio.run(use())


def test_many_tasks_share_one_asyncio_client(service: "Service", robot_id: str) -> None:
    async def use() -> list[labeler.Label]:
        async with labeler.AsyncClient(service.address, model=MODEL, timeout_ms=5_000) as client:
            return await asyncio.gather(
                *(client.label(robot_id, sequence, FAR) for sequence in range(1, 101))
            )

    labels = asyncio.run(use())

    assert [label.sequence for label in labels] == list(range(1, 101))


def test_an_asyncio_stream_gives_each_request_its_own_result(
    service: "Service", robot_id: str
) -> None:
    async def use() -> list[int]:
        async with (
            labeler.AsyncClient(service.address, model=MODEL, timeout_ms=5_000) as client,
            client.stream() as stream,
        ):
            for sequence in range(1, 21):
                await stream.send(robot_id, sequence, FAR)
            return [result.sequence or 0 async for result in stream]

    assert sorted(asyncio.run(use())) == list(range(1, 21))

"""Connections that reach their age: streams say goodbye, deaf ones are closed (trap 5, S30).

Full counts: about 80 s.
"""

import asyncio
import threading

import labeler
from labeler import open_files
from tests.support.accounting import balanced
from tests.support.counts import counts
from tests.support.database import stored
from tests.support.flow_http2 import Robot
from tests.support.reopening import BURST, ReopeningRobot
from tests.support.service import Service, StartService
from tests.support.waiting import eventually
from tests.support.wire import WIDTH, floats, request

VALUES = [2.5] * WIDTH


class GoawayWatch:
    """How many connections were told to go between one look and the next."""

    def __init__(self, service: Service) -> None:
        self.steps: list[float] = []
        self._service = service
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> list[float]:
        self._stop.set()
        self._thread.join(30)
        return self.steps

    def _run(self) -> None:
        last = 0.0
        while not self._stop.wait(0.02):
            now = self._service.metrics().sum("labeler_goaway_total")
            self.steps.append(now - last)
            last = now


async def live_through(
    address: str, count: int, generations: int, seed: int
) -> list[ReopeningRobot]:
    """Robots on a connection each, until every one has seen so many connections end."""
    clients = [labeler.AsyncClient(address, timeout_ms=60_000) for _ in range(count)]
    robots = [ReopeningRobot(one, f"robot-{n}", seed) for n, one in enumerate(clients)]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(robot.run(stop, pause_s=0.2)) for robot in robots]
    while any(len(robot.ends) < generations for robot in robots):
        done, _ = await asyncio.wait(tasks, timeout=0.05)
        assert not done, [task.exception() for task in done]
    stop.set()
    await asyncio.gather(*tasks)
    for client in clients:
        await client.close()
    return robots


@counts("streams", quick=40, full=300, full_timeout_s=400)
def test_no_label_is_lost_or_doubled_while_connections_reach_their_age(
    start_service: StartService, streams: int, seed: int
) -> None:
    """Whoever is told to go has all its replies, and sends again only what nobody has taken."""
    age_ms, generations = (1_500, 1) if streams < 300 else (2_000, 25)
    service = start_service(
        transport__connection_age_ms_max=age_ms,
        transport__connection_age_jitter_pct=50,
        path__dedupe_rows_max=1_000_000,
    )
    watch = GoawayWatch(service)
    robots = asyncio.run(live_through(service.address, streams, generations, seed))
    steps = watch.end()

    assert not {robot.robot_id: robot.wrong for robot in robots if robot.wrong}
    reasons = [str(end.__cause__) for robot in robots for end in robot.ends]
    told = [reason for reason in reasons if "has reached its age: reconnect" in reason]
    # What grpc.aio makes of a status, or of the connection's end, that comes while it sends: it
    # keeps that, and perhaps last replies, back; the busier the client, the more often. What is
    # sent again then is replayed.
    words = ("Internal error from Core", "Stream removed (sendmsg: Broken pipe (32))")
    amid = [reason for reason in reasons if reason in words]
    assert told
    assert len(told) + len(amid) == len(reasons), set(reasons)
    assert max(steps) < streams * 2 / 3, steps
    scrape = balanced(service)
    assert scrape.sum("labeler_goaway_total") >= streams * generations
    again = sum(scrape.sum(f"labeler_dedupe_{kind}_total") for kind in ("replays", "joins"))
    assert again <= BURST * len(amid), "an answered one was sent again"
    held = stored(service.database)
    sent = {(robot.robot_id, n) for robot in robots for n in range(1, robot.sent + 1)}
    assert set(held) == sent
    eventually(lambda: service.metrics().sum("labeler_streams_open") == 0)
    eventually(lambda: service.metrics().sum("labeler_connections_open") == 0)


@counts("clients", quick=20, full=200, full_timeout_s=120)
def test_clients_that_ignore_goaway_and_keep_their_stream_are_closed_after_the_grace(
    start_service: StartService, clients: int
) -> None:
    open_files.raise_limit()
    service = start_service(
        transport__connection_age_ms_max=600, transport__connection_age_grace_ms=300
    )
    files = service.metrics().sum("process_open_fds")
    peers = [Robot(service.address, window=100) for _ in range(clients)]
    for number, peer in enumerate(peers):
        messages = [request(f"deaf-{number}", n, floats(VALUES)) for n in range(1, 11)]
        assert peer.send(peer.open(), messages) == 10

    def gauges() -> list[float]:
        scrape = service.metrics()
        names = ("labeler_connections_open", "labeler_streams_open", "labeler_goaway_total")
        return [scrape.sum(name) for name in names]

    eventually(lambda: gauges() == [0, 0, clients], timeout_s=60)

    def all_told_and_closed() -> bool:
        for peer in peers:
            peer.read()
        return all(peer.closed and peer.goaway == 0 for peer in peers)

    eventually(all_told_and_closed, timeout_s=30)
    for peer in peers:
        peer.close()
    balanced(service)
    eventually(lambda: service.metrics().sum("process_open_fds") <= files + 2)

"""The admin port answers in every state; control requests are answered, whatever they raise."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from labeler.control import Control
from labeler.errors import ConfigError, InUseError, ModelInvalidError, StoppedError
from labeler.loop import LoopThread
from labeler.stores.base import Outcome, Page, Query, StoredRow, StoreLimits, StoreUnavailableError
from labeler.stores.blocking import Threaded
from labeler.stores.sqlite import SqliteStore
from labeler.telemetry.admin import AdminServer


class Pages:
    """Metrics and status in one: `broken` makes both fail."""

    broken = False

    def render(self, accept: str = "") -> tuple[bytes, str]:
        if self.broken:
            raise StoppedError("the engine is stopped")
        return b"labeler_serving 1\n", "text/plain"

    def status(self) -> dict[str, Any]:
        return {"state": "serving"}

    def stages(self) -> dict[str, Any]:
        return {"stages": []}

    def sample(self) -> None:
        """Nothing to keep."""


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def admin(pages: Pages) -> Iterator[AdminServer]:
    server = AdminServer("127.0.0.1:0")
    server.start(pages, pages)  # type: ignore[arg-type]
    yield server
    server.stop()


def get(admin: AdminServer, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{admin.address}{page}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_every_page_answers(admin: AdminServer) -> None:
    assert get(admin, "/metrics") == (200, "labeler_serving 1\n")
    assert json.loads(get(admin, "/status?x=1")[1]) == {"state": "serving"}
    assert json.loads(get(admin, "/stages")[1]) == {"stages": []}
    assert get(admin, "/healthz") == (200, "live\n")
    assert get(admin, "/other")[0] == 404


def test_a_page_that_fails_leaves_the_others_alive(admin: AdminServer, pages: Pages) -> None:
    pages.broken = True
    assert get(admin, "/metrics")[0] == 500
    assert get(admin, "/healthz") == (200, "live\n")


def test_a_silent_connection_delays_nobody(admin: AdminServer) -> None:
    host, _, port = admin.address.rpartition(":")
    with socket.create_connection((host, int(port))):
        assert get(admin, "/healthz") == (200, "live\n")


def test_a_taken_port_has_exit_code_69_and_is_named(admin: AdminServer) -> None:
    with pytest.raises(InUseError, match=admin.address) as caught:
        AdminServer(admin.address)
    assert caught.value.exit_code == 69


def test_a_start_asks_no_resolver_for_the_name_of_this_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(socket, "getfqdn", asked.append)
    AdminServer("127.0.0.1:0").stop()
    assert asked == []


def test_an_address_of_another_machine_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"admin\.address = 192\.0\.2\.1:9464"):
        AdminServer("192.0.2.1:9464")


class Core:
    """The border for control requests: hands out what it is given, collects the answers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[Mapping[str, Any]] = []
        self._asked = 0
        self.answers: dict[int, dict[str, Any]] = {}
        self.stopped = False
        self.release_load = threading.Event()
        self.fault: BaseException = ZeroDivisionError("a fault")

    def ask(
        self, kind: str, wait: bool = True, deadline_ms: int = 5000, **body: Any
    ) -> dict[str, Any]:
        with self._changed:
            self._asked += 1
            number = self._asked
            request = {"id": number, "kind": kind, "body": body, "deadline_ms": deadline_ms}
            self._requests.append(request)
            self._changed.notify_all()
            if not wait:
                return {}
            assert self._changed.wait_for(lambda: number in self.answers, 20)
            return self.answers[number]

    def take_control(self, rows_max: int, timeout_ms: int) -> Sequence[Mapping[str, Any]]:
        with self._changed:
            if self.stopped:
                raise StoppedError("the engine is stopped")
            if not self._requests:
                self._changed.wait(timeout_ms / 1000)
            taken, self._requests = self._requests[:rows_max], self._requests[rows_max:]
            return taken

    def answer_control(self, answers: Sequence[tuple[int, dict[str, Any]]]) -> None:
        with self._changed:
            self.answers.update(answers)
            self._changed.notify_all()

    def load_model(self, name: str, version: str, standby: bool) -> Mapping[str, Any]:
        self.release_load.wait(20)
        if name == "broken":
            raise ModelInvalidError("model broken version 1 cannot be loaded: no model.onnx")
        return {"name": name, "version": version or "1"}

    def unload_model(self, name: str, version: str) -> Sequence[Mapping[str, Any]]:
        return [{"name": name, "version": "1"}]

    def list_models(self) -> Sequence[Mapping[str, Any]]:
        raise self.fault


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "labels.sqlite3")
    store.ensure()
    store.write(
        [StoredRow("r", n, "l", 0, 0.5, "m", "1", 1, n, 0, "", "i", "j", n) for n in (1, 2)]
    )
    yield store
    store.close()


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    assert thread.stop(20)


@pytest.fixture
def control(core: Core, store: SqliteStore, loop: LoopThread) -> Iterator[Control]:
    control = Control(core, Threaded(store), loop)
    control.start()
    yield control
    core.stopped = True
    core.release_load.set()
    control.join(20)


class SlowStore:
    """A store whose pages take their whole time, and a little more."""

    limits = StoreLimits(rows_max=1)

    def ensure(self) -> None:
        raise NotImplementedError

    def write(self, rows: Sequence[StoredRow]) -> Sequence[Outcome]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __init__(self) -> None:
        self.lists: list[Query] = []

    def list(self, query: Query) -> Page:
        self.lists.append(query)
        threading.Event().wait((query.timeout_ms + 20) / 1000)
        raise StoreUnavailableError("interrupted")

    def get(self, robot_id: str, sequence: int) -> StoredRow | None:
        return None


def ask_list(core: Core, **changes: Any) -> dict[str, Any]:
    body = {"page_size": 0, "page_token": "", "from_unix_us": 0, "to_unix_us": 0, "robot_id": "r"}
    return core.ask("list", **{**body, **changes})


@pytest.mark.usefixtures("control")
def test_a_stored_label_is_read_back_as_stored(core: Core) -> None:
    label = core.ask("get", robot_id="r", sequence=2)["label"]
    assert (label["robot_id"], label["sequence"], label["durability"]) == ("r", 2, 3)
    assert label["journal_number"] == 2


@pytest.mark.usefixtures("control")
def test_a_label_that_is_not_there_is_named_by_its_key(core: Core) -> None:
    answer = core.ask("get", robot_id="r", sequence=9)
    # The core words it, as it does for what is pending.
    assert answer["error"] == "label_not_found"
    assert (answer["robot_id"], answer["sequence"]) == ("r", 9)


@pytest.mark.usefixtures("control")
def test_pages_follow_each_other_by_token(core: Core) -> None:
    first = ask_list(core, page_size=1)
    second = ask_list(core, page_size=1, page_token=first["next_page_token"])
    assert [page["labels"][0]["sequence"] for page in (first, second)] == [2, 1]
    assert second["next_page_token"] == ""


@pytest.mark.usefixtures("control")
def test_a_bad_page_token_is_invalid(core: Core) -> None:
    assert ask_list(core, page_token="nonsense")["error"] == "invalid"


@pytest.mark.usefixtures("control")
def test_reads_go_on_while_a_model_loads(core: Core) -> None:
    core.ask("load_model", wait=False, name="m", version="", standby=False)
    assert "label" in core.ask("get", robot_id="r", sequence=1)
    core.release_load.set()
    assert core.ask("unload_model", name="m", version="")["models"][0]["name"] == "m"


@pytest.mark.usefixtures("control")
def test_a_model_that_cannot_be_loaded_says_why(core: Core) -> None:
    core.release_load.set()
    answer = core.ask("load_model", name="broken", version="1", standby=False)
    assert answer["error"] == "model_invalid"
    assert "model.onnx" in answer["message"]


@pytest.mark.usefixtures("control")
@pytest.mark.parametrize("fault", [ZeroDivisionError("a fault"), SystemExit(3)], ids=repr)
def test_a_fault_answers_internal_and_the_next_request_is_served(
    core: Core, fault: BaseException
) -> None:
    core.fault = fault
    assert core.ask("list_models")["error"] == "internal"
    assert "label" in core.ask("get", robot_id="r", sequence=1)


def test_pages_whose_callers_have_left_are_not_computed(core: Core, loop: LoopThread) -> None:
    store = SlowStore()
    for _ in range(8):
        ask_list(core, wait=False, deadline_ms=200)
    control = Control(core, Threaded(store), loop)
    control.start()
    assert core.ask("get", robot_id="r", sequence=1)["error"] == "label_not_found"
    core.stopped = True
    control.join(20)
    assert len(store.lists) <= 1
    assert all(0 < query.timeout_ms <= 200 for query in store.lists)


@pytest.mark.usefixtures("control")
def test_a_model_operation_whose_caller_has_left_is_not_begun(core: Core) -> None:
    core.ask("load_model", wait=False, name="first", version="", standby=False)
    late = {"name": "late", "version": "", "standby": False}
    core.ask("load_model", wait=False, deadline_ms=0, **late)
    core.release_load.set()
    assert core.ask("unload_model", name="m", version="")["models"][0]["name"] == "m"
    assert sorted(core.answers) == [1, 3]


@pytest.mark.usefixtures("control")
def test_a_closed_store_is_unavailable(core: Core, store: SqliteStore) -> None:
    store.close()
    assert core.ask("get", robot_id="r", sequence=1)["error"] == "unavailable"

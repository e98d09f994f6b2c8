"""Commands against a running service: no proxy between them, whatever the environment says."""

import json

import pytest

from tests.support.service import Service, run_labeler
from tests.support.wire import WIDTH

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def _proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that takes no connection, for everything."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, NOBODY)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_proxy")
def test_status_asks_the_service_itself_where_a_proxy_is_set(service: Service) -> None:
    done = run_labeler("status", "--admin", service.admin_address, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "serving"


@pytest.mark.usefixtures("_proxy")
def test_label_asks_the_service_itself_where_a_proxy_is_set(service: Service) -> None:
    values = ",".join(["1"] * WIDTH)
    done = run_labeler("label", "--address", service.address, "--json", text=values)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["label"]


@pytest.mark.usefixtures("_proxy")
def test_the_demo_runs_where_a_proxy_and_a_quiet_log_are_set() -> None:
    short = ("--for", "500ms", "--warm-up", "", "--robots", "50", "--json")
    done = run_labeler("demo", *short, log__level="warn")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["labels"] > 0

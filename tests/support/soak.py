"""A long random run against a service that writes to DynamoDB: `make soak`, `SOAK_S=60 SEED=7`.

Robots label without end; faults of the store come and go, the service is killed, stopped, frozen
and started again, all drawn by the seed. At the end, with all faults gone, it prints one line:
`acknowledged N stored N dead N pending N lost 0 doubled 0`, and fails where a label is lost or
doubled: where a key's row is none of the answers that were acknowledged for it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.audit import Audit, at_dynamodb, audit
from tests.support.dynamodb import dynamo_server
from tests.support.fault_proxy import FaultProxy
from tests.support.faults.account import Credentials, Skew, TableMissing
from tests.support.faults.kinds import (
    Broken,
    Fault,
    Gone,
    Hang,
    Idle,
    Poison,
    Reset,
    ServerError,
    Slow,
    Throttle,
    Unprocessed,
)
from tests.support.load import Fleet, robots
from tests.support.service import Service, serve
from tests.support.waiting import eventually

FAULTS: tuple[Fault, ...] = (
    Unprocessed(share=0.3, probability=0.5),
    Unprocessed(),
    Unprocessed(robots=["robot-001"]),
    *(Throttle(reason, probability=0.5) for reason in ("table", "key_range", "account")),
    Throttle("table", retry_after_s=0.3, probability=0.3),
    ServerError(probability=0.5),
    ServerError(applied=True, probability=0.3),
    Reset("before", probability=0.3),
    Reset("after", probability=0.3),
    *(Broken(form, probability=0.2) for form in ("truncated", "json", "crc", "html", "garbage")),
    Hang(probability=0.1),
    Hang(applied=True, probability=0.1),
    Slow(0.3, probability=0.5),
    Idle(0.05, "rst"),
    Gone(),
    Credentials("expired", probability=0.5),
    Credentials("denied"),
    Skew(1200.0),
    TableMissing(probability=0.5),
    Poison(share=0.02, seed=1),
)
"""What may be on, three at a time."""


def soak(seconds: float, seed: int) -> Audit:
    """Runs it; what became of the acknowledged labels. Errors: as the parts that it is made of."""
    rng = random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        dynamo_server("ministack") as server,
        FaultProxy(server.url, seed) as proxy,
    ):
        table = server.table().create()
        state_dir, fleet = Path(folder) / "state", robots(8)
        settings: dict[str, Any] = at_dynamodb(table, proxy.url)
        service = serve(state_dir, **settings).wait_ready()
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                with ExitStack() as on, Fleet(service.address, fleet, rng.getrandbits(32)) as many:
                    for fault in rng.sample(FAULTS, rng.randint(0, 3)):
                        on.enter_context(proxy.on(fault))
                    goal = many.acknowledged() + rng.randint(50, 500)
                    eventually(lambda: many.acknowledged() >= goal, timeout_s=60)  # noqa: B023
                    many.stop()
                    service = _troubled(service, rng, state_dir, settings)
            _settle(service)
            found = audit(fleet, table, state_dir)
            _report(found)
            return found
        finally:
            service.close()


def _troubled(
    service: Service, rng: random.Random, state_dir: Path, settings: dict[str, Any]
) -> Service:
    """Something happens to the process, under the faults that are on; the one that serves then."""
    what = rng.choice(("nothing", "kill", "terminate", "freeze"))
    print(f"  {what}", file=sys.stderr)
    if what == "freeze":
        service.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: rng.random() < 0.02)
        finally:
            service.process.send_signal(signal.SIGCONT)
    if what in ("nothing", "freeze"):
        return service
    if what == "kill":
        service.kill()
    else:
        service.terminate()
        service.wait()
    service.close()
    return serve(state_dir, **settings).wait_ready()


def _settle(service: Service) -> None:
    """Without faults all is delivered."""
    eventually(lambda: not service.metrics().records().parts["pending"], timeout_s=120)


def _report(found: Audit) -> None:
    print(found.line)
    for word, wrong in (("lost", found.lost), ("doubled", found.doubled)):
        for key, why in list(wrong.items())[:20]:
            print(f"{word}: {key} {why}", file=sys.stderr)


def main() -> int:
    """Reads SOAK_S and SEED; 1 where a label is lost or doubled."""
    seconds = float(os.environ.get("SOAK_S", "600"))
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"soaking for {seconds:.0f} s, SEED={seed}", file=sys.stderr)
    found = soak(seconds, seed)
    return 1 if found.lost or found.doubled else 0


if __name__ == "__main__":
    sys.exit(main())

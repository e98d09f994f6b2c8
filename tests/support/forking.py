"""A program that serves and forks on command: run as a program.

`forking.py STATE_DIR` prints the address that the core listens on. For each line, a way, it makes a
child that uses what it has inherited and then leaves in that way, and answers with how the child
ended. The end of its input is the end of the program.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from labeler._core import Engine
from labeler._core.loadgen import Sender
from labeler.config import Sources, core_json, load
from labeler.errors import ForkedError

PLAN = '{"address": "127.0.0.1:1", "robots": 1, "connections": 1, "duration_s": 1, "schedule": '
PLAN += '{"shape": "constant", "rate_per_s": 1}}'

SIGNALS = {"terminated": signal.SIGTERM, "interrupted": signal.SIGINT}

Uses = dict[str, Callable[[], object]]


def uses_of(engine: Engine) -> Uses:
    """A call of each method."""
    return {
        "grpc_address": engine.grpc_address,
        "instance_id": engine.instance_id,
        "journal_id": engine.journal_id,
        "state": engine.state,
        "wait_state": lambda: engine.wait_state(60_000),
        "exit_code": engine.exit_code,
        "take_records": lambda: engine.take_records(1, 1, 60_000),
        "confirm": lambda: engine.confirm([1], "stored"),
        "take_control": lambda: engine.take_control(1, 60_000),
        "answer_control": lambda: engine.answer_control([]),
        "load_model": lambda: engine.load_model("kiva-floor", "", False),
        "unload_model": lambda: engine.unload_model("kiva-floor", ""),
        "list_models": engine.list_models,
        "stages": engine.stages,
        "snapshot": engine.snapshot,
        "drain": engine.drain,
        "stop": engine.stop,
    }


def refused(engine: Engine, sender: Sender) -> None:
    """Uses all of it. Errors: `SystemExit` with what was not refused."""
    uses = uses_of(engine) | {"sender": lambda: sender.wait(60_000)}
    for name, use in uses.items():
        try:
            use()
        except ForkedError as error:
            if "fork" in error.message and "in the child" in error.message:
                continue
        sys.exit(f"{name} was not refused")


def settings(state_dir: str) -> str:
    """What an engine in that folder starts with; its records stay until they are delivered."""
    chosen = (f"state_dir={state_dir}", "transport.grpc_address=127.0.0.1:0")
    return core_json(load(Sources(flags=[("--set", each) for each in chosen])))


def start_another(state_dir: str) -> None:
    """A process with a label path of its own, from its start to its end."""
    engine = Engine.start(settings(state_dir))
    assert engine.grpc_address()
    engine.stop()


def leave(way: str, engine: Engine, sender: Sender, used: int) -> None:
    """The end of a child, after it has used what it inherited and said so."""
    refused(engine, sender)
    os.write(used, b".")
    if way == "_exit":
        os._exit(0)
    if way == "last reference":
        del engine, sender
        sys.exit(0)
    if way == "exception":
        raise RuntimeError("on purpose")
    if way in SIGNALS:
        signal.pause()
    sys.exit(0)


def in_a_child(way: str, engine: Engine, sender: Sender) -> int:
    """The child's exit code, negative for a signal."""
    done, used = os.pipe()
    child = os.fork()
    if child == 0:
        leave(way, engine, sender, used)
    os.close(used)
    if os.read(done, 1) and way in SIGNALS:
        os.kill(child, SIGNALS[way])
    os.close(done)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def by_multiprocessing(way: str, engine: Engine, sender: Sender, state_dir: str) -> int | None:
    """A `multiprocessing` child, started in the way that this names."""
    kind = way.removeprefix("multiprocessing ")
    context: Any = multiprocessing.get_context(kind)
    if kind == "fork":
        child = context.Process(target=refused, args=(engine, sender))
    else:
        child = context.Process(target=start_another, args=(f"{state_dir}-{kind}",))
    child.start()
    child.join(60)
    code: int | None = child.exitcode
    return code


def inherited() -> str:
    """What a program that is started with all open files finds open."""
    code = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 1024) "
    code += "if os.path.exists(f'/proc/self/fd/{n}')])"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, close_fds=False, capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    """Serves, forks on command, and ends with its input."""
    state_dir = sys.argv[1]
    engine, sender = Engine.start(settings(state_dir)), Sender(PLAN)

    def deliver() -> None:
        while engine.state() == "serving":
            rows = engine.take_records(100, 1 << 20, 50)
            engine.confirm([row[-1] for row in rows], "stored")

    delivering = threading.Thread(target=deliver)
    delivering.start()
    print(engine.grpc_address(), flush=True)
    for line in sys.stdin:
        way = line.strip()
        if way == "inherited":
            print(inherited(), flush=True)
        elif way.startswith("multiprocessing"):
            print(by_multiprocessing(way, engine, sender, state_dir), flush=True)
        else:
            print(in_a_child(way, engine, sender), flush=True)
    engine.drain()
    delivering.join()
    engine.stop()


if __name__ == "__main__":
    main()

"""Reads a case: bench/cases/NAME/case.toml, strictly, every problem with its place and value.

The format, and nothing else: starts nothing, measures nothing. A name that is not known is never
ignored, since a misspelt guard would guard nothing.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bench.suite.burning import Burn
from bench.suite.copies import copy_name
from bench.suite.metrics import METRICS
from bench.suite.peers import PEER, PeerError, read_peer
from bench.suite.stores import StoreKind
from labeler import config
from labeler.config.problems import nearest, shown
from labeler.errors import ConfigError

__all__ = [
    "CASES",
    "Case",
    "CaseError",
    "Goal",
    "Guard",
    "Load",
    "Side",
    "case_names",
    "guard_of",
    "read_case",
]

CASES = Path(__file__).resolve().parent.parent / "cases"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_GUARD = re.compile(
    r"(?:(?P<side>[a-z0-9][a-z0-9-]*)\.)?(?P<metric>[a-z0-9_]+)"
    r"\s*(?P<sign><=|>=|==|<|>)\s*(?P<bound>[0-9]+(?:\.[0-9]+)?)"
)


_Model = TypeVar("_Model", bound=BaseModel)


class CaseError(Exception):
    """A case cannot be read; the message lists each problem with its place."""


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


Rate = Annotated[float, Field(gt=0, le=1e7, strict=False)]
Seconds = Annotated[float, Field(ge=0, le=3600, strict=False)]


class Constant(_Table):
    """Evenly spaced."""

    shape: Literal["constant"]
    rate_per_s: Rate


class Poisson(_Table):
    """Independent arrivals."""

    shape: Literal["poisson"]
    rate_per_s: Rate


class Step(_Table):
    """One rate, then another."""

    shape: Literal["step"]
    rate_per_s: Rate
    to_rate_per_s: Rate
    at_s: Seconds


class Ramp(_Table):
    """From one rate to another, over the whole run."""

    shape: Literal["ramp"]
    rate_per_s: Rate
    to_rate_per_s: Rate


class FlashCrowd(_Table):
    """A rate, and for a while `factor` times it."""

    shape: Literal["flash_crowd"]
    rate_per_s: Rate
    factor: Annotated[float, Field(gt=1, le=1000, strict=False)]
    at_s: Seconds
    lasts_s: Seconds


class Saturate(_Table):
    """Closed loop: so many calls are always on their way."""

    shape: Literal["saturate"]
    in_flight: Annotated[int, Field(ge=1, le=100_000)]


Schedule = Annotated[
    Constant | Poisson | Step | Ramp | FlashCrowd | Saturate, Field(discriminator="shape")
]


class Load(_Table):
    """What a side is sent; the sender's plan, without what only a run knows."""

    rpc: Literal["label", "label_stream", "label_batch", "kserve_infer", "http_predict"]
    schedule: Schedule
    batch_rows: Annotated[int, Field(ge=1, le=1000)] = 1000
    robots: Annotated[int, Field(ge=1, le=1_000_000)]
    connections: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    warmup_s: Seconds = 1.0
    duration_s: Annotated[float, Field(gt=0, le=3600, strict=False)] = 5.0
    timeout_ms: Annotated[int, Field(ge=1, le=3_600_000)] = 5000
    ready_timeout_ms: Annotated[int, Field(ge=1, le=3_600_000)] = 30_000
    model: str = ""
    models: list[str] = []
    version: str = ""
    durability: Literal["BUFFERED", "JOURNALED", "STORED"]
    priority: Literal["", "ROBOT", "BULK"] = ""
    payload: Literal["float", "double", "raw_float32", "raw_float64"] = "float"
    width: Annotated[int, Field(ge=1, le=100_000)] = 24
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    lag_limit_ms: Annotated[float, Field(gt=0, le=1e6, strict=False)] = 2.0


class Server(_Table):
    """How servers run: threads for connections, and for labeler a settings file of the case."""

    threads: Annotated[int, Field(ge=1, le=256)] = 2
    config: str = ""
    store: StoreKind = "sqlite"
    copies: Annotated[int, Field(ge=0, le=64)] = 0


ServerKind = Annotated[str, Field(pattern=r"^(echo|labeler|peer:[a-z0-9-]+)$")]
Writing = Literal["on", "off"]
BacklogRows = Annotated[int, Field(ge=0, le=10_000_000)]
NeverReading = Annotated[int, Field(ge=0, le=100_000)]
BulkRate = Annotated[int, Field(ge=0, le=1_000_000)]
_OF_A_LABELER: Mapping[str, object] = {
    "writer": "on",
    "backlog_rows": 0,
    "bulk_rows_per_s": 0,
    "swaps": False,
    "store_out": False,
    "config": "",
}
"""What a side says of a labeler alone, with the values of those that say nothing."""


class Side(_Table):
    """One of what is compared. Its `load` is the case's with its own changes."""

    server: ServerKind
    arguments: list[str] = []
    config: str = ""
    never_reading: NeverReading = 0
    burn: Burn = ""
    writer: Writing = "on"
    backlog_rows: BacklogRows = 0
    bulk_rows_per_s: BulkRate = 0
    swaps: bool = False
    store_out: bool = False
    tree: Path | None = None
    """Another work tree, whose service it is; no case file says so, `bench/compare.py` does."""
    load: Load


class _SideTable(_Table):
    server: ServerKind
    arguments: list[str] = []
    config: str = ""
    never_reading: NeverReading = 0
    burn: Burn = ""
    writer: Writing = "on"
    backlog_rows: BacklogRows = 0
    bulk_rows_per_s: BulkRate = 0
    swaps: bool = False
    store_out: bool = False
    load: dict[str, Any] = {}


def _is_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"unknown metric{nearest(name, METRICS)}")
    return name


class Goal(_Table):
    """A demand on `metric` of `side` over that of `against`; `ratio_max` or `ratio_min`, not 1."""

    metric: Annotated[str, AfterValidator(_is_metric)]
    side: str
    against: str
    ratio_max: Annotated[float, Field(gt=0, strict=False)] | None = None
    ratio_min: Annotated[float, Field(gt=0, strict=False)] | None = None


@dataclass(frozen=True)
class Guard:
    """A bound that has to hold for a side; with an empty `side`, for every side."""

    text: str
    side: str
    metric: str
    sign: str
    bound: float


class _CaseTable(_Table):
    about: Annotated[str, Field(min_length=10, max_length=300)]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)]
    erratic: bool = False
    server: Server = Server()
    load: Load
    sides: Annotated[dict[str, _SideTable], Field(min_length=2, max_length=16)]
    goals: list[Goal] = []
    guards: list[str] = []


@dataclass(frozen=True)
class Case:
    """A checked case. `sides` in their order; the first is what the others are shown against."""

    name: str
    folder: Path
    about: str
    seed: int
    erratic: bool
    server: Server
    sides: Mapping[str, Side]
    goals: tuple[Goal, ...]
    guards: tuple[Guard, ...]

    def config_of(self, side: Side) -> Path | None:
        """The settings file that a side's server is started with."""
        name = side.config or self.server.config
        return self.folder / name if name else None

    @property
    def has_peers(self) -> bool:
        """Whether a side is a server of other people."""
        return any(side.server.startswith(PEER) for side in self.sides.values())

    def without(self, absent: Collection[str]) -> Case:
        """The same without these sides, and without what is demanded of them."""
        return replace(
            self,
            sides={name: side for name, side in self.sides.items() if name not in absent},
            goals=tuple(g for g in self.goals if not {g.side, g.against} & set(absent)),
            guards=tuple(guard for guard in self.guards if guard.side not in absent),
        )


def case_names(folder: Path = CASES) -> list[str]:
    """All cases, by name."""
    return sorted(path.parent.name for path in folder.glob("*/case.toml"))


def read_case(name: str, folder: Path = CASES) -> Case:
    """The case of that name. Errors: `CaseError` with all that is wrong."""
    path = folder / name / "case.toml"
    if not path.is_file():
        known = case_names(folder)
        raise CaseError(f"no case {name!r}{nearest(name, known)}\nthere are: {', '.join(known)}")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CaseError(f"{name}/case.toml is not TOML: {error}") from error
    problems: list[str] = []
    table = _validated(_CaseTable, raw, "", problems)
    sides = _sides(table, raw, problems) if table else {}
    guards = [guard_of(text, problems) for text in table.guards] if table else []
    case = None
    if table and not problems:
        case = Case(
            name=name,
            folder=path.parent,
            about=table.about,
            seed=table.seed,
            erratic=table.erratic,
            server=table.server,
            sides=sides,
            goals=tuple(table.goals),
            guards=tuple(guard for guard in guards if guard),
        )
        problems += _relations(case)
    if case is None or problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise CaseError(f"{name}/case.toml cannot be used:\n{lines}")
    return case


def _sides(table: _CaseTable, raw: Mapping[str, Any], problems: list[str]) -> dict[str, Side]:
    sides = {}
    for name, side in table.sides.items():
        merged = {**raw["load"], **side.load}
        load = _validated(Load, merged, f"sides.{name}.load.", problems)
        if not _NAME.fullmatch(name):
            problems.append(f"sides.{name}: a name has only a-z, 0-9 and -")
        elif load:
            sides[name] = Side.model_validate(side.model_dump() | {"load": load})
    return sides


def _validated(
    model: type[_Model], raw: Mapping[str, Any], prefix: str, problems: list[str]
) -> _Model | None:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems += [prefix + _problem(raw, item) for item in error.errors()]
        return None


def _problem(raw: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    """One line: the key's path, its value, and what was expected."""
    value: Any = raw
    path = []
    last = len(item["loc"]) - 1
    for number, part in enumerate(item["loc"]):
        if isinstance(value, list):
            value = value[part]
        elif part in value or number == last:
            value = value.get(part)
        else:
            continue  # the tag of a union: pydantic puts it into the path, it is no key of the file
        path.append(str(part))
    where = ".".join(path)
    if item["type"] == "missing":
        return f"{where}: missing"
    if item["type"] == "extra_forbidden":
        return f"{where} = {shown(value)}: unknown key"
    return f"{where} = {shown(value)}: {item['msg']}"


def guard_of(text: str, problems: list[str]) -> Guard | None:
    """A guard as it is written; None, and a problem more, where that cannot be read."""
    match = _GUARD.fullmatch(text.strip())
    if match is None:
        expected = "`metric <= 10` or `side.metric <= 10`, with one of <= < == > >="
        problems.append(f"guards: {shown(text)}: expected {expected}")
        return None
    metric = match["metric"]
    if metric not in METRICS:
        problems.append(f"guards: {shown(text)}: unknown metric{nearest(metric, METRICS)}")
        return None
    return Guard(text.strip(), match["side"] or "", metric, match["sign"], float(match["bound"]))


def _relations(case: Case) -> list[str]:
    """What single values cannot show: names of sides, metrics that a server has not, files."""
    problems = []
    for guard in case.guards:
        problems += _unknown_sides(
            case, f"guards: {guard.text}", [guard.side] if guard.side else []
        )
        concerned = [guard.side] if guard.side else list(case.sides)
        problems += _missing_metric(case, f"guards: {guard.text}", concerned, guard.metric)
    for number, goal in enumerate(case.goals):
        where = f"goals.{number}"
        problems += _unknown_sides(case, where, [goal.side, goal.against])
        problems += _missing_metric(case, where, [goal.side, goal.against], goal.metric)
        if (goal.ratio_max is None) == (goal.ratio_min is None):
            problems.append(f"{where}: expected one of `ratio_max` and `ratio_min`")
        elif math.isclose(goal.ratio_max or goal.ratio_min or 1, 1, abs_tol=0.005):
            problems.append(f"{where}: a demand of 1 cannot be told from noise; say 0.98 or 1.02")
        if goal.side == goal.against:
            problems.append(f"{where}: `side` and `against` are the same")
    for name, side in case.sides.items():
        problems += _wrong_load(name, side.load)
        problems += _wrong_models(name, side.load, case.server.copies)
        problems += _wrong_peer(name, side)
        problems += _wrong_writer(name, side, case.server.store)
        problems += _wrong_config(name, case.config_of(side) if side.server == "labeler" else None)
    return problems


def _unknown_sides(case: Case, where: str, names: Iterable[str]) -> list[str]:
    known = ", ".join(case.sides)
    return [
        f"{where}: no side {name!r}; there are: {known}" for name in names if name not in case.sides
    ]


def _missing_metric(case: Case, where: str, sides: Iterable[str], metric: str) -> list[str]:
    only = METRICS[metric].only
    return [
        f"{where}: `{metric}` is known of a {only} only, and {side!r} is {case.sides[side].server}"
        for side in sides
        if side in case.sides and only not in ("", case.sides[side].server)
    ]


def _wrong_load(name: str, load: Load) -> list[str]:
    if load.connections > load.robots:
        expected = f"at most `robots` ({load.robots})"
        return [f"sides.{name}: load.connections = {load.connections}: expected {expected}"]
    return _wrong_http(f"sides.{name}.load", load) if load.rpc == "http_predict" else []


def _wrong_http(where: str, load: Load) -> list[str]:
    """What a body of one row has no place for, and what HTTP/1.1 cannot do."""
    problems = [
        f"{where}.{key}: http_predict has no place for it"
        for key in ("model", "models", "version", "priority")
        if getattr(load, key)
    ]
    in_flight = load.schedule.in_flight if isinstance(load.schedule, Saturate) else 0
    if in_flight > load.connections:
        expected = f"at most `connections` ({load.connections}): of each, one call"
        problems.append(f"{where}.schedule.in_flight = {in_flight}: expected {expected}")
    return problems


def _wrong_models(name: str, load: Load, copies: int) -> list[str]:
    where = f"sides.{name}.load.models"
    if load.model and load.models:
        return [f"{where}: expected no `model` beside it"]
    known = [copy_name(number) for number in range(1, copies + 1)]
    return [
        f"{where}: no model {model!r}{nearest(model, known)}; [server] has copies = {copies}"
        for model in load.models
        if model not in known
    ]


def _wrong_writer(name: str, side: Side, store: StoreKind) -> list[str]:
    where = f"sides.{name}"
    if side.server != "labeler":
        said = [key for key, unsaid in _OF_A_LABELER.items() if getattr(side, key) != unsaid]
        said += ["burn"] if side.burn == "inside" else []
        what = "an echo has no models, store, settings or Python"
        if side.server != "echo":
            what = "known of a labeler only"
        return [f"{where}.{key}: {what}" for key in said]
    if side.backlog_rows and side.writer == "off":
        return [f"{where}: with its writer off all labels wait: expected no `backlog_rows`"]
    for key in ("backlog_rows", "store_out"):
        if getattr(side, key) and store != "fast-dynamodb":
            return [f'{where}.{key}: expected [server] with store = "fast-dynamodb"']
    return []


def _wrong_peer(name: str, side: Side) -> list[str]:
    where = f"sides.{name}"
    if not side.server.startswith(PEER):
        return [f"{where}.arguments: known of a peer only"] if side.arguments else []
    try:
        peer = read_peer(side.server.removeprefix(PEER))
    except PeerError as error:
        return [f"{where}.server: {error}"]
    if side.load.rpc != peer.rpc:
        return [f'{where}.load.rpc = "{side.load.rpc}": {peer.name} answers "{peer.rpc}"']
    if side.load.payload != peer.payload:
        found = f'{where}.load.payload = "{side.load.payload}"'
        return [f'{found}: {peer.name} takes "{peer.payload}"']
    return []


def _wrong_config(name: str, path: Path | None) -> list[str]:
    """A settings file is read as the service itself reads it."""
    if path is None:
        return []
    try:
        config.load(config.Sources(path, {}))
    except ConfigError as error:
        return [f"sides.{name}: {error.message}"]
    return []

"""The core's part of the configuration, as the JSON that it reads (unknown names refused).

Values leave here resolved: paths absolute, sizes in bytes, threads as a number, the library found.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

from labeler import runtime_library
from labeler.config.load import Config
from labeler.config.stores import store_settings
from labeler.plan import DeliveryPlan, ServicePlan, WriterLimits

__all__ = ["core_json", "delivery_plan", "packaged_models", "service_plan", "state_path"]

_SECTIONS = ("transport", "path", "journal", "models", "control", "drain")


def core_json(config: Config) -> str:
    """JSON for `labeler._core.Engine.start`.

    Errors: `RuntimeLibraryError` where ONNX Runtime's library is not found.
    """
    values = config.settings.model_dump(mode="json", include={*_SECTIONS})
    values["state_dir"] = str(state_path(config))
    values["transport"]["threads"] = config.threads().count
    values["journal"]["directory"] = str(state_path(config) / "journal")
    library = runtime_library.find(config.settings.models.runtime_library)
    values["models"]["runtime_library"] = str(library)
    roots = [str(Path(root).absolute()) for root in config.settings.models.repositories]
    values["models"]["repositories"] = [*roots, str(packaged_models())]
    return json.dumps(values)


def service_plan(config: Config) -> ServicePlan:
    """What the service is told. Errors: those of `core_json`."""
    settings, threads = config.settings, config.threads()
    return ServicePlan(
        core=core_json(config),
        state_dir=str(state_path(config)),
        log_level=settings.log.level,
        log_format=settings.log.format,
        admin_address=settings.admin.address,
        store=settings.writer.store,
        store_settings=store_settings(settings),
        writer=_writer_limits(config),
        dead_letters_max=settings.writer.dead_letters_max,
        adopt=[os.path.abspath(folder) for folder in settings.writer.adopt],
        drain_budget_ms=settings.drain.budget_ms,
        drain_lame_duck_ms=settings.drain.lame_duck_ms,
        threads=threads.count,
        threads_origin=threads.origin,
    )


def delivery_plan(config: Config) -> DeliveryPlan:
    """What the delivery of another process's journal is told."""
    settings = config.settings
    return DeliveryPlan(
        journal=settings.journal.model_dump(mode="json"),
        state_dir=str(state_path(config)),
        store=settings.writer.store,
        store_settings=store_settings(settings),
        writer=_writer_limits(config),
        dead_letters_max=settings.writer.dead_letters_max,
        drain_budget_ms=settings.drain.budget_ms,
    )


def _writer_limits(config: Config) -> WriterLimits:
    names = {field.name for field in fields(WriterLimits)}
    return WriterLimits(**config.settings.writer.model_dump(include=names))


def state_path(config: Config) -> Path:
    """The state directory, absolute: the process may change its working directory later."""
    return Path(config.settings.state_dir).absolute()


def packaged_models() -> Path:
    """The repository that comes with the package: always the last that is searched."""
    return Path(__file__).parent.parent / "models" / "packaged"

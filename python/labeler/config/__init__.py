"""Configuration: one typed schema, four sources, all errors at once, each value with its origin.

`schema` says what there is, `sources` where it comes from, `checks` what must fit together, `load`
joins them, `core` makes of it what the service and its core are told, `stores` what the store is
opened with.
"""

from labeler.config.checks import Facts
from labeler.config.core import (
    core_json,
    delivery_plan,
    packaged_models,
    service_plan,
    state_path,
)
from labeler.config.load import Config, Effective, Sources, effective, load
from labeler.config.schema import Settings, all_sections, all_settings
from labeler.config.stores import store_settings

__all__ = [
    "Config",
    "Effective",
    "Facts",
    "Settings",
    "Sources",
    "all_sections",
    "all_settings",
    "core_json",
    "delivery_plan",
    "effective",
    "load",
    "packaged_models",
    "service_plan",
    "state_path",
    "store_settings",
]

"""The settings that the chosen store is opened with.

A built-in store has a section of its own; what another package adds gets `writer.store_settings`,
as text: only that store knows what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labeler.config.schema import Settings

__all__ = ["has_section", "store_settings"]

_SECTIONS = ("sqlite", "dynamodb")


def has_section(settings: Settings) -> bool:
    """Whether the chosen store is one of ours, with a section of the schema."""
    return settings.writer.store in _SECTIONS


def store_settings(settings: Settings) -> Mapping[str, Any]:
    """By name: the section of a built-in store, else the pairs of `writer.store_settings`."""
    if has_section(settings):
        section: Mapping[str, Any] = settings.model_dump()[settings.writer.store]
        return section
    pairs = (pair.partition("=") for pair in settings.writer.store_settings)
    return {name.strip(): value for name, _, value in pairs}

"""Finds stores by name: the built-in ones, and those that other packages add as entry points.

An entry point of the group `labeler.stores` names a function from `StoreContext` to a `Store`, or
to a `BlockingStore`. A store's module is imported only when it is chosen.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from labeler.stores.base import BlockingStore, Store, StoreContext
from labeler.stores.blocking import Threaded

__all__ = ["GROUP", "names", "open_store"]

GROUP = "labeler.stores"

# Here too, so that a source tree that was never installed finds them.
_BUILT_IN = {
    "dynamodb": "labeler.stores.dynamodb:open_store",
    "sqlite": "labeler.stores.sqlite:open_store",
}


def names() -> list[str]:
    """The names that `writer.store` takes."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def open_store(name: str, context: StoreContext) -> Store:
    """The store of that name, not yet `ensure`d. Errors: `KeyError` for a name not in `names()`."""
    if name in _BUILT_IN:
        module, _, function = _BUILT_IN[name].partition(":")
        make = getattr(importlib.import_module(module), function)
    else:
        make = entry_points(group=GROUP)[name].load()
    store = cast(Callable[[StoreContext], Store | BlockingStore], make)(context)
    if inspect.iscoroutinefunction(store.write):
        return cast(Store, store)
    return Threaded(cast(BlockingStore, store))

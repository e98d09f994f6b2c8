"""What `labeler store` asks of a store beside the protocol: make it, compare it with the settings.

A store may have `create` and `check` of its own, as coroutines; one that has neither is made and
checked by `ensure`, as at the start of a service.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from labeler.stores.base import Difference, Store
from labeler.stores.blocking import Threaded

__all__ = ["check", "create"]


async def create(store: Store) -> None:
    """Makes what is missing, whatever the setting for `serve` says. Errors: the store's."""
    own = getattr(_inner(store), "create", store.ensure)
    await _done(own())


async def check(store: Store) -> Sequence[Difference]:
    """What is not as the settings ask for. Errors: the store's."""
    own = getattr(_inner(store), "check", None)
    if own is None:
        await store.ensure()
        return ()
    found: Sequence[Difference] = await _done(own())
    return found


def _inner(store: Store) -> object:
    return store.inner if isinstance(store, Threaded) else store


async def _done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result

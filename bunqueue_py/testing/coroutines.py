"""Coroutine handlers where there is neither a thread nor a loop of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..sync import spawn


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs it to its end on an event loop of its own, and returns or raises what it does. Where
    the caller is in a coroutine himself, that loop runs on another thread meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(coroutine)
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((True, _run(coroutine)))
        except BaseException as error:  # a handler may raise anything
            outcome.extend((False, error))

    spawn("harness-loop", run).join()
    returned, value = outcome
    if not returned:
        raise value
    return value


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
